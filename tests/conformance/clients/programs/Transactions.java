import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/**
 * The Java client's part of tests/conformance/clients/test_transactions.py: a properties file, a topic, partitions, rounds.
 * Without rounds it sends a transaction for each command: {"do": "begin"}, "commit" or "abort".
 * Every line of the output is a name and a value; the test checks them.
 */
public class Transactions {
    private static final int RECORDS_PER_ROUND = 4;
    private static final int OFFSETS_ROUND = 4;
    private static final long OFFSET = 5;

    private final Properties properties = new Properties();
    private final String topic;
    private final int partitions;

    private Transactions(String[] arguments) throws Exception {
        try (FileReader reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Exception error) { // what starts this from its source cannot show every one
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        Transactions program = new Transactions(arguments);
        if (arguments.length > 3) {
            program.rounds(Integer.parseInt(arguments[3]));
            program.fence();
            program.timeOut();
            program.wide();
        } else {
            program.obey();
        }
        System.out.println("done 0");
    }

    private void obey() throws Exception {
        String id = "x-" + topic;
        int sent = 0;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer = producer(id, 60_000)) {
            System.out.println("ready " + epoch(id));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String word = line.split("\"")[3]; // {"do": "..."}
                if (word.equals("begin")) {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, 0, null, "" + sent++)).get();
                } else if (word.equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                System.out.println(word + " " + epoch(id));
            }
        }
    }

    private KafkaProducer<String, String> producer(String id, int timeoutMs) {
        Properties own = new Properties();
        own.putAll(properties);
        own.put("transactional.id", id);
        own.put("transaction.timeout.ms", timeoutMs);
        own.put("linger.ms", 0);
        own.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        own.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(own);
        producer.initTransactions();
        return producer;
    }

    private void rounds(int count) throws Exception {
        String id = "x-" + topic;
        try (KafkaProducer<String, String> producer = producer(id, 60_000)) {
            System.out.println("begun " + epoch(id));
            for (int round = 0; round < count; round++) {
                producer.beginTransaction();
                for (int part = 0; part < RECORDS_PER_ROUND; part++) {
                    String value = round + "-" + part;
                    producer.send(new ProducerRecord<>(topic, part % partitions, null, value));
                }
                if (round >= OFFSETS_ROUND) {
                    OffsetAndMetadata offset =
                            new OffsetAndMetadata(round == OFFSETS_ROUND ? OFFSET : OFFSET + round);
                    producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition(topic, 0), offset), group("g-" + topic));
                }
                if (round % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            System.out.println("ended " + epoch(id));
        }
    }

    private void fence() {
        String id = "fenced-" + topic;
        KafkaProducer<String, String> zombie = producer(id, 60_000);
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, null, "zombie"));
        zombie.flush();
        try (KafkaProducer<String, String> replacement = producer(id, 60_000)) {
            replacement.beginTransaction();
            replacement.send(new ProducerRecord<>(topic, partitions - 1, null, "kept"));
            System.out.println("zombie " + failure(zombie));
            replacement.commitTransaction();
        }
    }

    private void timeOut() throws Exception {
        String id = "slow-" + topic;
        KafkaProducer<String, String> slow = producer(id, 500);
        slow.beginTransaction();
        slow.send(new ProducerRecord<>(topic, 0, null, "too late"));
        slow.flush();
        TransactionState state = TransactionState.ONGOING;
        while (state != TransactionState.COMPLETE_ABORT) {
            state = description(id).state();
            Thread.sleep(50);
        }
        System.out.println("slow " + failure(slow));
    }

    /** A transaction in every partition of a topic, once aborted and once committed. */
    private void wide() {
        String topic = this.topic + "-wide";
        try (KafkaProducer<String, String> producer = producer("wide-" + topic, 60_000)) {
            for (String value : List.of("lost", "kept")) {
                producer.beginTransaction();
                for (int number = 0; number < producer.partitionsFor(topic).size(); number++) {
                    producer.send(new ProducerRecord<>(topic, number, null, value));
                }
                if (value.equals("lost")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    private static String failure(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (KafkaException error) {
            return error.getClass().getSimpleName();
        } finally {
            producer.close();
        }
        return "none";
    }

    @SuppressWarnings("removal")
    private static ConsumerGroupMetadata group(String name) {
        return new ConsumerGroupMetadata(name);
    }

    private int epoch(String id) throws Exception {
        return description(id).producerEpoch();
    }

    private TransactionDescription description(String id) throws Exception {
        try (Admin admin = Admin.create(properties)) {
            return admin.describeTransactions(List.of(id)).all().get().get(id);
        }
    }
}
