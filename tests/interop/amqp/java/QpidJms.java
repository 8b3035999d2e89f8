import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageEOFException;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.message.JmsMessageSupport;
import org.apache.qpid.proton.amqp.Binary;
import org.apache.qpid.proton.amqp.Decimal128;
import org.apache.qpid.proton.amqp.Decimal32;
import org.apache.qpid.proton.amqp.Decimal64;
import org.apache.qpid.proton.amqp.Symbol;
import org.apache.qpid.proton.amqp.UnsignedByte;
import org.apache.qpid.proton.amqp.UnsignedInteger;
import org.apache.qpid.proton.amqp.UnsignedLong;
import org.apache.qpid.proton.amqp.UnsignedShort;

/**
 * Runs commands for qpid-jms. A message has a `kind`: text, bytes, map, stream, object (serialized)
 * or typed (an ObjectMessage that holds one AMQP value).
 */
public final class QpidJms {
    private static String url;

    public static void main(String[] arguments) throws Exception {
        url = arguments[0].replaceFirst("^ws:", "amqpws:");
        Commands.serve(QpidJms::run);
    }

    static Connection connect(String options) throws Exception {
        var factory = new JmsConnectionFactory(url + "?amqp.saslMechanisms=ANONYMOUS" + options);
        return factory.createConnection();
    }

    private static JsonObject run(Commands.Asked asked) throws Exception {
        if (asked.verb.equals("scenario")) {
            return JmsScenarios.run(asked.scenario, asked.address);
        }
        String options = asked.frame_bytes > 0 ? "&amqp.maxFrameSize=" + asked.frame_bytes : "";
        // Without prefetch: what is not received is not taken, and so not given back as failed.
        options += "&jms.prefetchPolicy.all=0";
        if (asked.settled) {
            options += "&jms.presettlePolicy.presettleAll=true";
        }
        try (Connection connection = connect(options)) {
            connection.start();
            return switch (asked.verb) {
                case "send" -> send(connection, asked);
                case "receive" -> receive(connection, asked);
                default -> throw new IllegalArgumentException("no verb " + asked.verb);
            };
        }
    }

    private static JsonObject send(Connection connection, Commands.Asked asked) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(asked.address));
        var outcomes = new JsonArray();
        for (JsonElement each : asked.messages) {
            JsonObject fields = each.getAsJsonObject();
            var header = fields.has("header") ? fields.getAsJsonObject("header") : new JsonObject();
            boolean isDurable = header.has("durable") && header.get("durable").getAsBoolean();
            try {
                producer.send(
                        decodeMessage(session, fields),
                        isDurable ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT,
                        header.has("priority") ? header.get("priority").getAsInt() : 4,
                        header.has("ttl") ? header.get("ttl").getAsLong() : 0);
                outcomes.add(asked.settled ? "settled" : "accepted");
            } catch (jakarta.jms.JMSException error) {
                if (!error.getMessage().contains("REJECTED")) {
                    throw error;
                }
                outcomes.add("rejected");
            }
        }
        producer.close();
        var reply = new JsonObject();
        reply.add("outcomes", outcomes);
        return reply;
    }

    private static final Map<String, Integer> ACKNOWLEDGE =
            Map.of(
                    "accept", JmsMessageSupport.ACCEPTED,
                    "reject", JmsMessageSupport.REJECTED,
                    "release", JmsMessageSupport.RELEASED);

    private static JsonObject receive(Connection connection, Commands.Asked asked)
            throws Exception {
        // 101: each message is acknowledged by itself.
        Session session = connection.createSession(101);
        MessageConsumer consumer =
                session.createConsumer(session.createQueue(asked.address), asked.selector);
        var messages = new JsonArray();
        while (messages.size() < asked.count) {
            Message message = consumer.receive(60_000);
            if (message == null) {
                throw new IllegalStateException("receive took more than 60 s");
            }
            take(message, asked, messages);
        }
        var reply = new JsonObject();
        if (asked.drain) { // the client drains the link before it says that there is no message
            for (Message each = consumer.receiveNoWait(); each != null; ) {
                take(each, asked, messages);
                each = consumer.receiveNoWait();
            }
            reply.addProperty("drained", true);
        }
        consumer.close();
        reply.add("messages", messages);
        return reply;
    }

    private static void take(Message message, Commands.Asked asked, JsonArray messages)
            throws Exception {
        messages.add(encodeMessage(message));
        String outcome = asked.outcome == null ? "accept" : asked.outcome;
        if (outcome.equals("none")) {
            return;
        }
        Integer type = ACKNOWLEDGE.get(outcome);
        if (type == null) {
            type =
                    asked.undeliverable
                            ? JmsMessageSupport.MODIFIED_FAILED_UNDELIVERABLE
                            : JmsMessageSupport.MODIFIED_FAILED;
        }
        message.setIntProperty(JmsMessageSupport.JMS_AMQP_ACK_TYPE, type);
        message.acknowledge();
    }

    // ---- Messages

    private static Message decodeMessage(Session session, JsonObject fields) throws Exception {
        JsonArray body = fields.getAsJsonArray("body");
        String kind = fields.has("kind") ? fields.get("kind").getAsString() : kindOf(body);
        Object value =
                body.get(0).getAsString().equals("data")
                        ? new Binary(Values.HEX.parseHex(body.get(1).getAsString()))
                        : VALUES.decode(body.get(1));
        Message message =
                switch (kind) {
                    case "text" -> session.createTextMessage((String) value);
                    case "bytes" -> {
                        BytesMessage bytes = session.createBytesMessage();
                        bytes.writeBytes(((Binary) value).getArray());
                        yield bytes;
                    }
                    case "map" -> {
                        MapMessage map = session.createMapMessage();
                        for (var each : ((Map<?, ?>) value).entrySet()) {
                            map.setObject((String) each.getKey(), java(each.getValue()));
                        }
                        yield map;
                    }
                    case "stream" -> {
                        StreamMessage stream = session.createStreamMessage();
                        for (Object each : (List<?>) value) {
                            stream.writeObject(java(each));
                        }
                        yield stream;
                    }
                    case "object" -> session.createObjectMessage((Serializable) value);
                    case "typed" -> {
                        ObjectMessage object = session.createObjectMessage();
                        object.setBooleanProperty(
                                "JMS_AMQP_TYPED_ENCODING", true);
                        object.setObject((Serializable) value);
                        yield object;
                    }
                    default -> throw new IllegalArgumentException(kind);
                };
        if (fields.has("application_properties")) {
            for (JsonElement each : fields.getAsJsonArray("application_properties")) {
                JsonArray pair = each.getAsJsonArray();
                message.setObjectProperty(
                        (String) VALUES.decode(pair.get(0)),
                        VALUES.decode(pair.get(1)));
            }
        }
        if (fields.has("properties")) {
            JsonObject properties = fields.getAsJsonObject("properties");
            if (properties.has("subject")) {
                message.setJMSType((String) VALUES.decode(properties.get("subject")));
            }
            if (properties.has("correlation_id")) {
                message.setJMSCorrelationID(
                        (String) VALUES.decode(properties.get("correlation_id")));
            }
            if (properties.has("group_id")) {
                message.setStringProperty(
                        "JMSXGroupID", (String) VALUES.decode(properties.get("group_id")));
            }
        }
        return message;
    }

    private static String kindOf(JsonArray body) {
        if (body.get(0).getAsString().equals("data")) {
            return "bytes";
        }
        return body.get(1).getAsJsonArray().get(0).getAsString().equals("string")
                ? "text"
                : "typed";
    }

    private static JsonObject encodeMessage(Message message) throws Exception {
        var fields = new JsonObject();
        var header = new JsonObject();
        header.addProperty("durable", message.getJMSDeliveryMode() == DeliveryMode.PERSISTENT);
        header.addProperty("priority", message.getJMSPriority());
        int deliveries = message.getIntProperty("JMSXDeliveryCount");
        header.addProperty("delivery_count", deliveries - 1);
        header.addProperty("redelivered", message.getJMSRedelivered());
        fields.add("header", header);
        var properties = new JsonObject();
        if (message.getJMSType() != null) {
            properties.add("subject", VALUES.encode(message.getJMSType()));
        }
        if (message.getJMSCorrelationID() != null) {
            properties.add("correlation_id", VALUES.encode(message.getJMSCorrelationID()));
        }
        fields.add("properties", properties);
        var pairs = new JsonArray();
        for (Object name : Collections.list((Enumeration<?>) message.getPropertyNames())) {
            Object value = message.getObjectProperty((String) name);
            if (!((String) name).startsWith("JMS")) {
                pairs.add(Values.array(VALUES.encode(name), VALUES.encode(value)));
            }
        }
        fields.add("application_properties", pairs);
        encodeBody(message, fields);
        return fields;
    }

    private static void encodeBody(Message message, JsonObject fields) throws Exception {
        String kind;
        JsonArray body;
        if (message instanceof TextMessage text) {
            kind = "text";
            body = Values.array("value", VALUES.encode(text.getText()));
        } else if (message instanceof BytesMessage bytes) {
            byte[] octets = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(octets);
            kind = "bytes";
            body = Values.array("data", Values.HEX.formatHex(octets));
        } else if (message instanceof MapMessage map) {
            var values = new LinkedHashMap<Object, Object>();
            for (Object name : Collections.list((Enumeration<?>) map.getMapNames())) {
                values.put(name, map.getObject((String) name));
            }
            kind = "map";
            body = Values.array("value", VALUES.encode(values));
        } else if (message instanceof StreamMessage stream) {
            var values = new ArrayList<Object>();
            try {
                while (true) {
                    values.add(stream.readObject());
                }
            } catch (MessageEOFException end) {
                kind = "stream";
            }
            body = Values.array("value", VALUES.encode(values));
        } else if (message instanceof ObjectMessage object) {
            kind = object.getBooleanProperty("JMS_AMQP_TYPED_ENCODING")
                    ? "typed"
                    : "object";
            body = Values.array("value", VALUES.encode(object.getObject()));
        } else {
            kind = "message";
            body = Values.array("value", VALUES.encode(null));
        }
        fields.addProperty("kind", kind);
        fields.add("body", body);
    }

    // ---- Values

    /** Return a value as MapMessage and StreamMessage accept it. */
    private static Object java(Object value) {
        return value instanceof Binary binary ? binary.getArray() : value;
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
                    if (value instanceof byte[] found) {
                        return array("binary", HEX.formatHex(found));
                    }
                    return value instanceof Binary found
                            ? array("binary", HEX.formatHex(found.getArray()))
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
