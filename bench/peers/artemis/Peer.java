import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/** Apache Artemis as a peer: `Peer PORT FOLDER CREDIT memory|journal`. It prints "up" when it serves. */
public final class Peer {
    public static void main(String[] arguments) throws Exception {
        String folder = arguments[1];
        int credit = Integer.parseInt(arguments[2]);
        var settings = new ConfigurationImpl();
        settings.setPersistenceEnabled(arguments[3].equals("journal"));
        settings.setJournalType(JournalType.NIO);
        settings.setSecurityEnabled(false);
        settings.setJournalDirectory(folder + "/journal");
        settings.setBindingsDirectory(folder + "/bindings");
        settings.setLargeMessagesDirectory(folder + "/large");
        settings.setPagingDirectory(folder + "/paging");
        settings.addAcceptorConfiguration(
                "amqp",
                "tcp://127.0.0.1:" + arguments[0] + "?protocols=AMQP;amqpCredits=" + credit
                        + ";amqpLowCredits=" + credit * 3 / 10);
        var queues = new AddressSettings();
        queues.setDefaultAddressRoutingType(RoutingType.ANYCAST);
        queues.setDefaultQueueRoutingType(RoutingType.ANYCAST);
        settings.addAddressSetting("#", queues);
        new EmbeddedActiveMQ().setConfiguration(settings).start();
        System.out.println("up");
        Thread.currentThread().join();
    }
}
