import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.protonj2.client.AdvancedMessage;
import org.apache.qpid.protonj2.client.Client;
import org.apache.qpid.protonj2.client.ClientOptions;
import org.apache.qpid.protonj2.client.Connection;
import org.apache.qpid.protonj2.client.ConnectionOptions;
import org.apache.qpid.protonj2.client.Delivery;
import org.apache.qpid.protonj2.client.DeliveryMode;
import org.apache.qpid.protonj2.client.DeliveryState;
import org.apache.qpid.protonj2.client.Receiver;
import org.apache.qpid.protonj2.client.ReceiverOptions;
import org.apache.qpid.protonj2.client.Sender;
import org.apache.qpid.protonj2.client.SenderOptions;
import org.apache.qpid.protonj2.client.Tracker;
import org.apache.qpid.protonj2.types.Binary;
import org.apache.qpid.protonj2.types.Decimal128;
import org.apache.qpid.protonj2.types.Decimal32;
import org.apache.qpid.protonj2.types.Decimal64;
import org.apache.qpid.protonj2.types.Symbol;
import org.apache.qpid.protonj2.types.UnsignedByte;
import org.apache.qpid.protonj2.types.UnsignedInteger;
import org.apache.qpid.protonj2.types.UnsignedLong;
import org.apache.qpid.protonj2.types.UnsignedShort;
import org.apache.qpid.protonj2.types.messaging.AmqpSequence;
import org.apache.qpid.protonj2.types.messaging.AmqpValue;
import org.apache.qpid.protonj2.types.messaging.ApplicationProperties;
import org.apache.qpid.protonj2.types.messaging.Data;
import org.apache.qpid.protonj2.types.messaging.Header;
import org.apache.qpid.protonj2.types.messaging.MessageAnnotations;
import org.apache.qpid.protonj2.types.messaging.Properties;
import org.apache.qpid.protonj2.types.messaging.Section;

/** Runs commands for protonj2-client. */
public final class ProtonJ2 {
    private static String host;
    private static int port;
    private static String path;

    public static void main(String[] arguments) throws Exception {
        var url = java.net.URI.create(arguments[0]);
        host = url.getHost();
        port = url.getPort();
        path = url.getScheme().equals("ws") ? url.getPath() : null;
        Commands.serve(ProtonJ2::run);
    }

    private static JsonObject run(Commands.Asked asked) throws Exception {
        var options = new ConnectionOptions();
        options.saslOptions().addAllowedMechanism("ANONYMOUS");
        options.requestTimeout(60_000).openTimeout(60_000).sendTimeout(60_000).drainTimeout(60_000);
        if (path != null) {
            options.transportOptions().useWebSockets(true).webSocketPath(path);
        }
        if (asked.frame_bytes > 0) {
            options.maxFrameSize(asked.frame_bytes);
        }
        try (Client client = Client.create(new ClientOptions().id("protonj2-" + UUID.randomUUID()));
                Connection connection = client.connect(host, port, options)) {
            return switch (asked.verb) {
                case "send" -> send(connection, asked);
                case "receive" -> receive(connection, asked);
                default -> throw new IllegalArgumentException("no verb " + asked.verb);
            };
        }
    }

    private static JsonObject send(Connection connection, Commands.Asked asked) throws Exception {
        var options = new SenderOptions();
        options.deliveryMode(
                asked.settled ? DeliveryMode.AT_MOST_ONCE : DeliveryMode.AT_LEAST_ONCE);
        Sender sender = connection.openSender(asked.address, options).openFuture().get();
        var trackers = new ArrayList<Tracker>();
        for (JsonElement each : asked.messages) {
            trackers.add(sender.send(decodeMessage(each.getAsJsonObject())));
        }
        var outcomes = new JsonArray();
        for (Tracker tracker : trackers) {
            if (asked.settled) {
                outcomes.add("settled");
            } else {
                tracker.awaitSettlement(60, TimeUnit.SECONDS);
                outcomes.add(tracker.remoteState().getType().name().toLowerCase());
            }
        }
        sender.close();
        var reply = new JsonObject();
        reply.add("outcomes", outcomes);
        return reply;
    }

    private static JsonObject receive(Connection connection, Commands.Asked asked)
            throws Exception {
        var options = new ReceiverOptions().creditWindow(0).autoAccept(false).autoSettle(false);
        if (asked.settled) {
            options.deliveryMode(DeliveryMode.AT_MOST_ONCE);
        }
        if (asked.selector != null) {
            var descriptor = Symbol.valueOf("apache.org:selector-filter:string");
            options.sourceOptions().addFilter("selector", descriptor, asked.selector);
        }
        Receiver receiver = connection.openReceiver(asked.address, options).openFuture().get();
        receiver.addCredit(Math.max(asked.credit, asked.count));
        var messages = new JsonArray();
        while (messages.size() < asked.count) {
            Delivery delivery = receiver.receive(60, TimeUnit.SECONDS);
            if (delivery == null) {
                throw new IllegalStateException("receive took more than 60 s");
            }
            messages.add(encodeMessage(delivery.message().toAdvancedMessage()));
            settle(delivery, asked);
        }
        var reply = new JsonObject();
        if (asked.drain) {
            receiver.drain().get(60, TimeUnit.SECONDS);
            Delivery delivery = receiver.tryReceive();
            for (; delivery != null; delivery = receiver.tryReceive()) {
                messages.add(encodeMessage(delivery.message().toAdvancedMessage()));
                settle(delivery, asked);
            }
            reply.addProperty("drained", true);
        }
        receiver.close();
        reply.add("messages", messages);
        return reply;
    }

    private static void settle(Delivery delivery, Commands.Asked asked) throws Exception {
        if (delivery.remoteSettled()) {
            return;
        }
        switch (asked.outcome == null ? "accept" : asked.outcome) {
            case "accept" -> delivery.accept();
            case "reject" -> delivery.reject("test:bad", "not wanted");
            case "release" -> delivery.release();
            case "modify" ->
                    delivery.disposition(
                            DeliveryState.modified(asked.failed, asked.undeliverable), true);
            default -> {}
        }
    }

    // ---- Messages

    private static AdvancedMessage<Object> decodeMessage(JsonObject fields) throws Exception {
        AdvancedMessage<Object> message = AdvancedMessage.create();
        if (fields.has("header")) {
            JsonObject found = fields.getAsJsonObject("header");
            var header = new Header();
            if (found.has("durable")) {
                header.setDurable(found.get("durable").getAsBoolean());
            }
            if (found.has("priority")) {
                header.setPriority(found.get("priority").getAsByte());
            }
            if (found.has("ttl")) {
                header.setTimeToLive(found.get("ttl").getAsLong());
            }
            message.header(header);
        }
        if (fields.has("annotations")) {
            var annotations = new LinkedHashMap<Symbol, Object>();
            for (var each : VALUES.decodePairs(fields.getAsJsonArray("annotations")).entrySet()) {
                annotations.put((Symbol) each.getKey(), each.getValue());
            }
            message.annotations(new MessageAnnotations(annotations));
        }
        if (fields.has("properties")) {
            message.properties(decodeProperties(fields.getAsJsonObject("properties")));
        }
        if (fields.has("application_properties")) {
            var properties = new LinkedHashMap<String, Object>();
            var pairs = VALUES.decodePairs(fields.getAsJsonArray("application_properties"));
            pairs.forEach((key, value) -> properties.put((String) key, value));
            message.applicationProperties(new ApplicationProperties(properties));
        }
        JsonArray body = fields.getAsJsonArray("body");
        for (int index = 1; index < body.size(); index++) {
            JsonElement part = body.get(index);
            message.addBodySection(
                    switch (body.get(0).getAsString()) {
                        case "data" -> new Data(Values.HEX.parseHex(part.getAsString()));
                        case "sequence" -> new AmqpSequence<>(VALUES.decodeList(part));
                        default -> new AmqpValue<>(VALUES.decode(part));
                    });
        }
        return message;
    }

    private static JsonObject encodeMessage(AdvancedMessage<?> message) throws Exception {
        var fields = new JsonObject();
        var header = new JsonObject();
        header.addProperty("durable", message.durable());
        header.addProperty("priority", message.priority());
        header.addProperty("ttl", message.timeToLive());
        header.addProperty("first_acquirer", message.firstAcquirer());
        header.addProperty("delivery_count", message.deliveryCount());
        fields.add("header", header);
        var annotations = message.annotations();
        fields.add(
                "annotations",
                VALUES.encodePairs(annotations == null ? Map.of() : annotations.getValue()));
        if (message.properties() != null) {
            fields.add("properties", encodeProperties(message.properties()));
        }
        var properties = message.applicationProperties();
        fields.add(
                "application_properties",
                VALUES.encodePairs(properties == null ? Map.of() : properties.getValue()));
        var body = new JsonArray();
        for (Section<?> section : message.bodySections()) {
            if (section instanceof Data data) {
                if (body.isEmpty()) {
                    body.add("data");
                }
                body.add(Values.HEX.formatHex(data.getValue()));
            } else if (section instanceof AmqpSequence<?> sequence) {
                if (body.isEmpty()) {
                    body.add("sequence");
                }
                body.add(VALUES.encodeList(sequence.getValue()));
            } else {
                body.add("value");
                body.add(VALUES.encode(section.getValue()));
            }
        }
        fields.add("body", body);
        return fields;
    }

    private static Properties decodeProperties(JsonObject fields) {
        var properties = new Properties();
        for (var each : fields.entrySet()) {
            Object value = VALUES.decode(each.getValue());
            switch (each.getKey()) {
                case "message_id" -> properties.setMessageId(value);
                case "user_id" -> properties.setUserId((Binary) value);
                case "to" -> properties.setTo((String) value);
                case "subject" -> properties.setSubject((String) value);
                case "reply_to" -> properties.setReplyTo((String) value);
                case "correlation_id" -> properties.setCorrelationId(value);
                case "content_type" -> properties.setContentType(value.toString());
                case "content_encoding" -> properties.setContentEncoding(value.toString());
                case "absolute_expiry_time" ->
                        properties.setAbsoluteExpiryTime(((Date) value).getTime());
                case "creation_time" -> properties.setCreationTime(((Date) value).getTime());
                case "group_id" -> properties.setGroupId((String) value);
                case "group_sequence" ->
                        properties.setGroupSequence(((UnsignedInteger) value).longValue());
                case "reply_to_group_id" -> properties.setReplyToGroupId((String) value);
                default -> throw new IllegalArgumentException(each.getKey());
            }
        }
        return properties;
    }

    private static JsonObject encodeProperties(Properties properties) {
        var fields = new JsonObject();
        if (properties.hasMessageId()) {
            fields.add("message_id", VALUES.encode(properties.getMessageId()));
        }
        if (properties.hasUserId()) {
            fields.add("user_id", VALUES.encode(properties.getUserId()));
        }
        if (properties.hasTo()) {
            fields.add("to", VALUES.encode(properties.getTo()));
        }
        if (properties.hasSubject()) {
            fields.add("subject", VALUES.encode(properties.getSubject()));
        }
        if (properties.hasReplyTo()) {
            fields.add("reply_to", VALUES.encode(properties.getReplyTo()));
        }
        if (properties.hasCorrelationId()) {
            fields.add("correlation_id", VALUES.encode(properties.getCorrelationId()));
        }
        if (properties.hasContentType()) {
            fields.add("content_type", VALUES.encode(Symbol.valueOf(properties.getContentType())));
        }
        if (properties.hasContentEncoding()) {
            fields.add(
                    "content_encoding", VALUES.encode(Symbol.valueOf(properties.getContentEncoding())));
        }
        if (properties.hasAbsoluteExpiryTime()) {
            fields.add(
                    "absolute_expiry_time", VALUES.encode(new Date(properties.getAbsoluteExpiryTime())));
        }
        if (properties.hasCreationTime()) {
            fields.add("creation_time", VALUES.encode(new Date(properties.getCreationTime())));
        }
        if (properties.hasGroupId()) {
            fields.add("group_id", VALUES.encode(properties.getGroupId()));
        }
        if (properties.hasGroupSequence()) {
            fields.add(
                    "group_sequence",
                    VALUES.encode(UnsignedInteger.valueOf(properties.getGroupSequence())));
        }
        if (properties.hasReplyToGroupId()) {
            fields.add("reply_to_group_id", VALUES.encode(properties.getReplyToGroupId()));
        }
        return fields;
    }

    private static final Values VALUES =
            new Values() {
                @Override
                Object decodeOwn(String type, String text) {
                    return switch (type) {
                        case "ubyte" -> UnsignedByte.valueOf((byte) Integer.parseInt(text));
                        case "ushort" -> UnsignedShort.valueOf((short) Integer.parseInt(text));
                        case "uint" -> UnsignedInteger.valueOf(Integer.parseUnsignedInt(text));
                        case "ulong" -> UnsignedLong.valueOf(Long.parseUnsignedLong(text));
                        case "decimal32" -> new Decimal32(Integer.parseUnsignedInt(text, 16));
                        case "decimal64" -> new Decimal64(Long.parseUnsignedLong(text, 16));
                        case "decimal128" -> new Decimal128(HEX.parseHex(text));
                        case "binary" -> new Binary(HEX.parseHex(text));
                        case "symbol" -> Symbol.valueOf(text);
                        default -> throw new IllegalArgumentException(type);
                    };
                }

                @Override
                JsonArray encodeOwn(Object value) {
                    String name = OWN.get(value.getClass());
                    if (name != null) {
                        return array(name, value);
                    }
                    if (value instanceof Decimal32 found) {
                        return array("decimal32", HEX.toHexDigits(found.getBits()));
                    }
                    if (value instanceof Decimal64 found) {
                        return array("decimal64", HEX.toHexDigits(found.getBits()));
                    }
                    if (value instanceof Decimal128 found) {
                        return array("decimal128", HEX.formatHex(found.asBytes()));
                    }
                    return value instanceof Binary found
                            ? array("binary", HEX.formatHex(found.asByteArray()))
                            : null;
                }
            };
    private static final Map<Class<?>, String> OWN =
            Map.of(
                    UnsignedByte.class, "ubyte",
                    UnsignedShort.class, "ushort",
                    UnsignedInteger.class, "uint",
                    UnsignedLong.class, "ulong",
                    Symbol.class, "symbol");
}
