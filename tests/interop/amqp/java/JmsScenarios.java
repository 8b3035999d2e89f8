import com.google.gson.JsonObject;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/** What JMS programs do, each as one method that throws when an expectation is not met. */
final class JmsScenarios {
    private static final long LONG_MS = 30_000;
    /** How long to wait for a message that must not come. */
    private static final long NOTHING_MS = 400;

    private interface Scenario {
        void run(String name) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS =
            Map.ofEntries(
                    Map.entry("queue", JmsScenarios::queue),
                    Map.entry("competing consumers", JmsScenarios::competingConsumers),
                    Map.entry("one message each", JmsScenarios::oneMessageEach),
                    Map.entry("topic", JmsScenarios::topic),
                    Map.entry("no local", JmsScenarios::noLocal),
                    Map.entry("durable subscription", JmsScenarios::durableSubscription),
                    Map.entry("shared subscription", JmsScenarios::sharedSubscription),
                    Map.entry("shared durable", JmsScenarios::sharedDurableSubscription),
                    Map.entry("browser", JmsScenarios::browser),
                    Map.entry("temporary queue", JmsScenarios::temporaryQueue),
                    Map.entry("temporary topic", JmsScenarios::temporaryTopic),
                    Map.entry("request and reply", JmsScenarios::requestAndReply),
                    Map.entry("selectors", JmsScenarios::selectors),
                    Map.entry("invalid selector", JmsScenarios::invalidSelector),
                    Map.entry("priorities", JmsScenarios::priorities),
                    Map.entry("delivery count", JmsScenarios::deliveryCount),
                    Map.entry("recover", JmsScenarios::recover),
                    Map.entry("client acknowledge", JmsScenarios::clientAcknowledge),
                    Map.entry("time to live", JmsScenarios::timeToLive),
                    Map.entry("message listener", JmsScenarios::messageListener),
                    Map.entry("anonymous producer", JmsScenarios::anonymousProducer),
                    Map.entry("client id in use", JmsScenarios::clientIdInUse),
                    Map.entry("transacted session", JmsScenarios::transactedSession));

    private JmsScenarios() {}

    static JsonObject run(String scenario, String name) throws Exception {
        SCENARIOS.get(scenario).run(name);
        var reply = new JsonObject();
        reply.addProperty("passed", scenario);
        return reply;
    }

    // ---- Queues

    private static void queue(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            send(session, queue, "one", "two", "three");
            expect(List.of("one", "two", "three"), take(session.createConsumer(queue), 3));
            expectNothing(session.createConsumer(queue));
        }
    }

    private static void competingConsumers(String name) throws Exception {
        try (Connection connection = started("&jms.prefetchPolicy.all=1")) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            var first = connection.createSession().createConsumer(queue);
            var second = connection.createSession().createConsumer(queue);
            send(session, queue, "a", "b", "c", "d");
            var seen = new TreeSet<String>();
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            expect(List.of("a", "b", "c", "d"), new ArrayList<>(seen));
        }
    }

    private static void browser(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            session.createConsumer(queue).close(); // the queue is there
            send(session, queue, "one", "two", "three");
            for (int round = 0; round < 2; round++) { // browsing takes nothing away
                QueueBrowser browser = session.createBrowser(queue);
                var seen = new ArrayList<String>();
                for (Object each : Collections.list((Enumeration<?>) browser.getEnumeration())) {
                    seen.add(((TextMessage) each).getText());
                }
                expect(List.of("one", "two", "three"), seen);
                browser.close();
            }
            expect(List.of("one", "two", "three"), take(session.createConsumer(queue), 3));
        }
    }

    private static void temporaryQueue(String name) throws Exception {
        try (Connection connection = started();
                Connection other = started()) {
            Session session = connection.createSession();
            TemporaryQueue queue = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(queue);
            Session sender = other.createSession();
            send(sender, sender.createQueue(queue.getQueueName()), "from elsewhere");
            expect(List.of("from elsewhere"), take(consumer, 1));
            // Only its connection may receive from it.
            expectFailure(() -> sender.createConsumer(sender.createQueue(queue.getQueueName())));
            consumer.close();
            queue.delete();
            expectFailure(() -> send(session, queue, "gone"));
        }
    }

    private static void requestAndReply(String name) throws Exception {
        try (Connection requester = started();
                Connection responder = started()) {
            Session serving = responder.createSession();
            MessageProducer replies = serving.createProducer(null);
            MessageConsumer requests = serving.createConsumer(serving.createQueue(name));
            requests.setMessageListener(
                    request -> {
                        try {
                            String text = ((TextMessage) request).getText();
                            Message reply = serving.createTextMessage(text.toUpperCase());
                            reply.setJMSCorrelationID(request.getJMSMessageID());
                            replies.send(request.getJMSReplyTo(), reply);
                        } catch (JMSException error) {
                            throw new IllegalStateException(error);
                        }
                    });
            Session asking = requester.createSession();
            Queue inbox = asking.createTemporaryQueue();
            MessageConsumer answers = asking.createConsumer(inbox);
            MessageProducer producer = asking.createProducer(asking.createQueue(name));
            for (String each : List.of("one", "two")) {
                Message request = asking.createTextMessage(each);
                request.setJMSReplyTo(inbox);
                producer.send(request);
                Message answer = next(answers);
                expect(each.toUpperCase(), ((TextMessage) answer).getText());
                expect(request.getJMSMessageID(), answer.getJMSCorrelationID());
            }
        }
    }

    private static void anonymousProducer(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            MessageProducer anywhere = session.createProducer(null);
            Queue first = session.createQueue(name + "-1");
            Queue second = session.createQueue(name + "-2");
            anywhere.send(first, session.createTextMessage("to the first"));
            anywhere.send(second, session.createTextMessage("to the second"));
            MessageConsumer atFirst = session.createConsumer(first);
            MessageConsumer atSecond = session.createConsumer(second);
            expect(List.of("to the first"), take(atFirst, 1));
            expect(List.of("to the second"), take(atSecond, 1));
        }
    }

    private static void messageListener(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            var seen = Collections.synchronizedList(new ArrayList<String>());
            var done = new java.util.concurrent.CountDownLatch(50);
            MessageConsumer consumer = connection.createSession().createConsumer(queue);
            consumer.setMessageListener(
                    message -> {
                        try {
                            seen.add(((TextMessage) message).getText());
                            done.countDown();
                        } catch (JMSException error) {
                            throw new IllegalStateException(error);
                        }
                    });
            var sent = new ArrayList<String>();
            for (int number = 0; number < 50; number++) {
                sent.add("message " + number);
            }
            send(session, queue, sent.toArray(new String[0]));
            expect(true, done.await(LONG_MS, java.util.concurrent.TimeUnit.MILLISECONDS));
            expect(sent, new ArrayList<>(seen));
        }
    }

    // ---- Topics and subscriptions

    /**
     * As JmsTemplate.receive of Spring does: each consumer prefetches all messages, and takes one.
     * There are more consumers than a message has attempts, and no message is lost.
     */
    private static void oneMessageEach(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            String[] bodies = new String[20];
            for (int index = 0; index < bodies.length; index++) {
                bodies[index] = "message " + index;
            }
            send(session, queue, bodies);
            for (String body : bodies) {
                MessageConsumer consumer = session.createConsumer(queue);
                expect(body, ((TextMessage) next(consumer)).getText());
                consumer.close();
            }
            expectNothing(session.createConsumer(queue));
        }
    }

    private static void topic(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            send(session, topic, "before anybody listens");
            MessageConsumer first = session.createConsumer(topic);
            MessageConsumer second = session.createConsumer(topic);
            send(session, topic, "one", "two");
            expect(List.of("one", "two"), take(first, 2));
            expect(List.of("one", "two"), take(second, 2));
            expectNothing(first);
        }
    }

    private static void noLocal(String name) throws Exception {
        try (Connection connection = started();
                Connection other = started()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            MessageConsumer consumer = session.createConsumer(topic, null, true);
            send(session, topic, "my own");
            send(other.createSession(), topic, "another's");
            expect(List.of("another's"), take(consumer, 1));
            expectNothing(consumer);
        }
    }

    private static void durableSubscription(String name) throws Exception {
        try (Connection connection = started("&jms.clientID=" + name)) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            session.createDurableConsumer(topic, "sub").close();
            send(session, topic, "while away");
        }
        try (Connection connection = started("&jms.clientID=" + name)) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            MessageConsumer consumer = session.createDurableConsumer(topic, "sub");
            send(session, topic, "while here");
            expect(List.of("while away", "while here"), take(consumer, 2));
            consumer.close();
            session.unsubscribe("sub");
            send(session, topic, "after the end");
            MessageConsumer fresh = session.createDurableConsumer(topic, "sub");
            expectNothing(fresh);
            fresh.close();
            session.unsubscribe("sub");
            expectFailure(() -> session.unsubscribe("sub"));
        }
    }

    private static void sharedSubscription(String name) throws Exception {
        try (Connection one = started("&jms.prefetchPolicy.all=1");
                Connection two = started("&jms.prefetchPolicy.all=1")) {
            Topic topic = one.createSession().createTopic(name);
            MessageConsumer first = one.createSession().createSharedConsumer(topic, "shared");
            MessageConsumer second = two.createSession().createSharedConsumer(topic, "shared");
            Session session = one.createSession();
            MessageConsumer whole = session.createConsumer(topic);
            send(session, topic, "a", "b", "c", "d");
            var seen = new TreeSet<String>();
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            expect(List.of("a", "b", "c", "d"), new ArrayList<>(seen));
            expect(List.of("a", "b", "c", "d"), take(whole, 4));
        }
    }

    private static void sharedDurableSubscription(String name) throws Exception {
        String identified = "&jms.prefetchPolicy.all=1&jms.clientID=" + name;
        try (Connection connection = started(identified)) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            MessageConsumer first = session.createSharedDurableConsumer(topic, "sub");
            MessageConsumer second =
                    connection.createSession().createSharedDurableConsumer(topic, "sub");
            send(session, topic, "a", "b");
            var seen = new TreeSet<String>();
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            expect(List.of("a", "b"), new ArrayList<>(seen));
            first.close();
            second.close();
            send(session, topic, "while away");
            MessageConsumer back = session.createSharedDurableConsumer(topic, "sub");
            expect(List.of("while away"), take(back, 1));
            back.close();
            session.unsubscribe("sub");
        }
        try (Connection one = started("&jms.prefetchPolicy.all=1");
                Connection two = started("&jms.prefetchPolicy.all=1")) {
            // Without a client id the subscription is everybody's.
            Topic topic = one.createSession().createTopic(name);
            MessageConsumer first =
                    one.createSession().createSharedDurableConsumer(topic, "global-" + name);
            MessageConsumer second =
                    two.createSession().createSharedDurableConsumer(topic, "global-" + name);
            send(one.createSession(), topic, "a", "b");
            var seen = new TreeSet<String>();
            seen.addAll(take(first, 1));
            seen.addAll(take(second, 1));
            expect(List.of("a", "b"), new ArrayList<>(seen));
        }
    }

    private static void temporaryTopic(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            TemporaryTopic topic = session.createTemporaryTopic();
            MessageConsumer first = session.createConsumer(topic);
            MessageConsumer second = session.createConsumer(topic);
            send(session, topic, "to both");
            expect(List.of("to both"), take(first, 1));
            expect(List.of("to both"), take(second, 1));
        }
    }

    private static void clientIdInUse(String name) throws Exception {
        try (Connection connection = started("&jms.clientID=" + name)) {
            expectFailure(() -> started("&jms.clientID=" + name).close());
            Session session = connection.createSession();
            send(session, session.createQueue(name), "the first is still there");
        }
    }

    // ---- Selection, order and counts

    private static void selectors(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            var consumers = new ArrayList<MessageConsumer>();
            List<String> selectors =
                    List.of(
                            "colour = 'red'",
                            "size BETWEEN 2 AND 3",
                            "colour IN ('blue', 'green') AND size > 1",
                            "colour LIKE 'g%'",
                            "weight IS NULL",
                            "size * 2 + 1 = 5",
                            "JMSType = 'odd'",
                            "NOT (is_new = TRUE)",
                            "JMSPriority > 4");
            for (String each : selectors) {
                consumers.add(session.createConsumer(topic, each));
            }
            MessageProducer producer = session.createProducer(topic);
            String[] colours = {"red", "green", "blue"};
            for (int number = 1; number <= 3; number++) {
                Message message = session.createTextMessage(colours[number - 1]);
                message.setStringProperty("colour", colours[number - 1]);
                message.setIntProperty("size", number);
                message.setBooleanProperty("is_new", number == 1);
                if (number == 3) {
                    message.setDoubleProperty("weight", 1.5);
                }
                message.setJMSType(number % 2 == 1 ? "odd" : "even");
                producer.send(message, DeliveryMode.NON_PERSISTENT, number == 2 ? 9 : 4, 0);
            }
            List<List<String>> expected =
                    List.of(
                            List.of("red"),
                            List.of("green", "blue"),
                            List.of("green", "blue"),
                            List.of("green"),
                            List.of("red", "green"),
                            List.of("green"),
                            List.of("red", "blue"),
                            List.of("green", "blue"),
                            List.of("green"));
            for (int index = 0; index < selectors.size(); index++) {
                List<String> seen = take(consumers.get(index), expected.get(index).size());
                expect(selectors.get(index), expected.get(index), seen);
            }
            for (MessageConsumer each : consumers) {
                expect(null, each.receiveNoWait());
            }
        }
    }

    private static void invalidSelector(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            try {
                session.createConsumer(queue, "colour = = 'red'");
            } catch (InvalidSelectorException expected) {
                session.createConsumer(queue, "colour = 'red'").close();
                return;
            }
            throw new AssertionError("the selector was accepted");
        }
    }

    private static void priorities(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            session.createConsumer(queue).close(); // the queue is there
            MessageProducer producer = session.createProducer(queue);
            int[] priorities = {4, 0, 9, 4, 7};
            for (int index = 0; index < priorities.length; index++) {
                Message message = session.createTextMessage(index + ":" + priorities[index]);
                producer.send(message, DeliveryMode.NON_PERSISTENT, priorities[index], 0);
            }
            MessageConsumer consumer = session.createConsumer(queue);
            for (int count = 0; count < priorities.length; count++) {
                Message message = next(consumer);
                String text = ((TextMessage) message).getText();
                expect(text.substring(2), String.valueOf(message.getJMSPriority()));
            }
        }
    }

    private static void deliveryCount(String name) throws Exception {
        try (Connection connection = started("&jms.prefetchPolicy.all=0")) {
            Session sending = connection.createSession();
            Queue queue = sending.createQueue(name);
            send(sending, queue, "fails twice");
            for (int attempt = 1; attempt <= 3; attempt++) {
                Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(queue);
                Message message = next(consumer);
                expect(attempt, message.getIntProperty("JMSXDeliveryCount"));
                expect(attempt > 1, message.getJMSRedelivered());
                if (attempt == 3) {
                    message.acknowledge();
                } else {
                    message.setIntProperty("JMS_AMQP_ACK_TYPE", 4); // modified, delivery failed
                    message.acknowledge();
                }
                session.close();
            }
            expectNothing(sending.createConsumer(queue));
        }
    }

    private static void recover(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "one", "two");
            MessageConsumer consumer = session.createConsumer(queue);
            expect(List.of("one", "two"), take(consumer, 2));
            session.recover();
            Message again = next(consumer);
            expect("one", ((TextMessage) again).getText());
            expect(true, again.getJMSRedelivered());
            next(consumer).acknowledge();
            session.close();
            expectNothing(connection.createSession().createConsumer(queue));
        }
    }

    private static void clientAcknowledge(String name) throws Exception {
        try (Connection connection = started("&jms.prefetchPolicy.all=0")) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "one", "two", "three");
            MessageConsumer consumer = session.createConsumer(queue);
            next(consumer);
            next(consumer).acknowledge(); // all that the session has received
            next(consumer);
            session.close(); // the third was not acknowledged
            Session fresh = connection.createSession();
            expect(List.of("three"), take(fresh.createConsumer(queue), 1));
        }
    }

    private static void timeToLive(String name) throws Exception {
        try (Connection connection = started()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(name);
            session.createConsumer(queue).close();
            MessageProducer producer = session.createProducer(queue);
            producer.send(
                    session.createTextMessage("short"), DeliveryMode.NON_PERSISTENT, 4, 50);
            producer.send(
                    session.createTextMessage("long"), DeliveryMode.NON_PERSISTENT, 4, 600_000);
            Thread.sleep(500);
            Message message = next(session.createConsumer(queue));
            expect("long", ((TextMessage) message).getText());
            expect(true, message.getJMSExpiration() > System.currentTimeMillis());
        }
    }

    /** Transactions are not offered: the client is told so, and nothing is lost or stored. */
    private static void transactedSession(String name) throws Exception {
        try (Connection connection = started()) {
            expectFailure(
                    () -> {
                        Session session = connection.createSession(Session.SESSION_TRANSACTED);
                        send(session, session.createQueue(name), "in a transaction");
                        session.commit();
                    });
        }
        try (Connection connection = started()) {
            Session session = connection.createSession();
            expectNothing(session.createConsumer(session.createQueue(name)));
        }
    }

    // ---- Helpers

    private static Connection started(String... options) throws Exception {
        Connection connection = QpidJms.connect(String.join("", options));
        try {
            connection.start();
        } catch (JMSException error) {
            connection.close();
            throw error;
        }
        return connection;
    }

    private static void send(Session session, Destination destination, String... texts)
            throws JMSException {
        try (MessageProducer producer = session.createProducer(destination)) {
            for (String each : texts) {
                producer.send(session.createTextMessage(each));
            }
        }
    }

    private static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(LONG_MS);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    private static List<String> take(MessageConsumer consumer, int count) throws JMSException {
        var texts = new ArrayList<String>();
        for (int index = 0; index < count; index++) {
            texts.add(((TextMessage) next(consumer)).getText());
        }
        return texts;
    }

    private static void expectNothing(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(NOTHING_MS);
        expect(null, message == null ? null : ((TextMessage) message).getText());
    }

    private interface Act {
        void run() throws Exception;
    }

    private static void expectFailure(Act act) throws Exception {
        try {
            act.run();
        } catch (JMSException expected) {
            return;
        }
        throw new AssertionError("no exception");
    }

    private static void expect(Object expected, Object found) {
        expect("", expected, found);
    }

    private static void expect(String what, Object expected, Object found) {
        if (!java.util.Objects.equals(expected, found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }
}
