// RocketMQ, by its own Java client: the same verbs and the same lines as loads/common.py.
// Before what is timed the same is done for some seconds, so that its code, and the broker's, is
// compiled: RocketMQ's own benchmark classes tell nothing of their first ten seconds either. (They
// run for ever at a rate of their own and read what comes while it is published; a fixed backlog
// cannot be asked of them.)

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public final class RocketMQLoad {
  private static final long WARM_UP_NS = 4_000_000_000L;
  private static final long REGISTRATION_NS = 30_000_000_000L;
  private static String address;

  public static void main(String[] args) throws Exception {
    String asked = args[0];
    address = text(asked, "address");
    String topic = text(asked, "topic");
    int messages = number(asked, "messages");
    int bodyBytes = number(asked, "body_bytes");
    byte[] body = new byte[bodyBytes];
    java.util.Arrays.fill(body, (byte) 'x');
    Work work;
    switch (text(asked, "verb")) {
      case "publish":
        DefaultMQProducer producer = producer();
        createTopic(producer, topic);
        int batch = number(asked, "batch");
        createTopic(producer, topic + "warm");
        send(producer, topic, body, 1);
        warmUp(() -> send(producer, topic + "warm", body, batch));
        work = () -> {
          for (int sent = 0; sent < messages; sent += batch) {
            send(producer, topic, body, batch);
          }
        };
        break;
      case "consume":
        warmUp(() -> consume(topic, messages, (long) messages * bodyBytes));
        work = () -> consume(topic, messages, (long) messages * bodyBytes);
        break;
      case "singles":
        int producers = number(asked, "producers");
        DefaultMQProducer shared = producer();
        createTopic(shared, topic);
        createTopic(shared, topic + "warm");
        send(shared, topic, body, 1);
        inThreads(producers, () -> warmUp(() -> send(shared, topic + "warm", body, 1)));
        work = () -> inThreads(producers, () -> {
          for (int n = 0; n < messages / producers; n++) {
            send(shared, topic, body, 1);
          }
        });
        break;
      default:
        throw new IllegalArgumentException("no such verb here: " + asked);
    }
    var os = (com.sun.management.OperatingSystemMXBean)
        java.lang.management.ManagementFactory.getOperatingSystemMXBean();
    System.out.println("begins");
    System.out.flush();
    long cpu = os.getProcessCpuTime();
    long started = System.nanoTime();
    work.run();
    double seconds = (System.nanoTime() - started) / 1e9;
    System.out.printf(
        java.util.Locale.ROOT,
        "{\"messages\": %d, \"body_bytes\": %d, \"seconds\": %f, \"client_cpu_s\": %f}%n",
        messages, bodyBytes, seconds, (os.getProcessCpuTime() - cpu) / 1e9);
    System.exit(0);
  }

  private interface Work {
    void run() throws Exception;
  }

  private static void warmUp(Work work) throws Exception {
    long until = System.nanoTime() + WARM_UP_NS;
    while (System.nanoTime() < until) {
      work.run();
    }
  }

  private static void inThreads(int count, Work work) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(count);
    List<Future<?>> all = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      all.add(threads.submit(() -> {
        work.run();
        return null;
      }));
    }
    for (Future<?> one : all) {
      one.get();
    }
    threads.shutdown();
  }

  private static DefaultMQProducer producer() throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("bench");
    producer.setNamesrvAddr(address);
    producer.setSendMsgTimeout(30_000);
    producer.start();
    return producer;
  }

  // The broker's port is open before the broker has registered with the name server. Until then the
  // name server knows no broker for the topic.
  private static void createTopic(DefaultMQProducer producer, String topic) throws Exception {
    long until = System.nanoTime() + REGISTRATION_NS;
    while (true) {
      try {
        producer.createTopic("TBW102", topic, 1, null);
        return;
      } catch (MQClientException error) {
        if (System.nanoTime() > until) {
          throw error;
        }
        Thread.sleep(200);
      }
    }
  }

  private static void send(DefaultMQProducer producer, String topic, byte[] body, int count)
      throws Exception {
    SendStatus status;
    if (count == 1) {
      status = producer.send(new Message(topic, body)).getSendStatus();
    } else {
      List<Message> batch = new ArrayList<>(count);
      for (int i = 0; i < count; i++) {
        batch.add(new Message(topic, body));
      }
      status = producer.send(batch).getSendStatus();
    }
    if (status != SendStatus.SEND_OK) {
      throw new IllegalStateException("not stored: " + status);
    }
  }

  private static void consume(String topic, int messages, long bytes) throws Exception {
    DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench");
    consumer.setNamesrvAddr(address);
    consumer.setInstanceName("bench" + System.nanoTime());
    consumer.start();
    MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
    long offset = 0;
    long size = 0;
    int count = 0;
    while (count < messages) {
      PullResult result = consumer.pull(queue, "*", offset, 1000);
      if (result.getPullStatus() == PullStatus.FOUND) {
        for (MessageExt message : result.getMsgFoundList()) {
          size += message.getBody().length;
          count++;
        }
      }
      offset = result.getNextBeginOffset();
    }
    if (size < bytes) {
      throw new IllegalStateException(size + " bytes came, not " + bytes);
    }
    consumer.shutdown();
  }

  private static String text(String json, String name) {
    return json.replaceAll(".*\"" + name + "\": \"([^\"]*)\".*", "$1");
  }

  private static int number(String json, String name) {
    return Integer.parseInt(json.replaceAll(".*\"" + name + "\": (\\d+).*", "$1"));
  }
}
