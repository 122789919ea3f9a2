import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** What is recorded of Java's clients: the same scenarios as in tests/support/clients/librdkafka_scenarios.py. */
final class Recorded {
    private static final String SOURCE = "in";
    private static final String TARGET = "out";
    private static final TopicPartition PLACE = new TopicPartition(SOURCE, 0);
    private static final Duration SHORT = Duration.ofMillis(50);
    private static final int RECORDS = 3;

    private final String bootstrap;

    private Recorded(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    /** BOOTSTRAP SCENARIO. */
    public static void main(String[] arguments) throws Exception {
        new Recorded(arguments[0]).go(arguments[1]);
        Checks.passed(arguments[1]);
    }

    private void go(String scenario) throws Exception {
        switch (scenario) {
            case "idempotent": idempotent(); break;
            case "transaction": transaction(); break;
            case "transform": transform(); break;
            case "classic-group": group("classic", "heartbeat.interval.ms", "200"); break;
            case "new-group": group("consumer"); break;
            case "fenced-end": fencedEnd(); break;
            case "fenced-produce": fencedProduce(); break;
            case "lost-produce": lostProduce(); break;
            case "lost-pipeline": lostPipeline(); break;
            case "lost-add-partitions": case "lost-end": twoTransactions(); break;
            case "lost-add-offsets": case "lost-offset-commit": lostOffsets(); break;
            case "given-up": givenUp(); break;
            default: throw new IllegalArgumentException(scenario);
        }
    }

    private KafkaProducer<String, String> producer(int number, boolean isTransactional, String... more) {
        List<String> settings = new ArrayList<>(List.of(
            "client.id", "producer-" + number, "linger.ms", "1000",
            "reconnect.backoff.ms", "5", "reconnect.backoff.max.ms", "50"));
        if (isTransactional) {
            settings.addAll(List.of("transactional.id", "transactor"));
        }
        settings.addAll(List.of(more));
        KafkaProducer<String, String> made = new KafkaProducer<>(Checks.producer(bootstrap, settings.toArray(String[]::new)));
        if (isTransactional) {
            made.initTransactions();
        }
        return made;
    }

    private KafkaConsumer<String, String> consumer(int number, String protocol, String... more) {
        List<String> settings = new ArrayList<>(List.of(
            "client.id", "consumer-" + number, "group.id", "readers", "group.protocol", protocol,
            "reconnect.backoff.ms", "5", "reconnect.backoff.max.ms", "50"));
        if (protocol.equals("classic")) {
            settings.addAll(List.of(
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RoundRobinAssignor"));
        }
        settings.addAll(List.of(more));
        return new KafkaConsumer<>(Checks.consumer(bootstrap, settings.toArray(String[]::new)));
    }

    private static void send(KafkaProducer<String, String> producer, int partition, String... values) throws Exception {
        List<Future<?>> sent = new ArrayList<>();
        for (String value : values) {
            sent.add(producer.send(new ProducerRecord<>(TARGET, partition, null, value)));
        }
        producer.flush();
        for (Future<?> one : sent) {
            one.get();
        }
    }

    private static void transact(KafkaProducer<String, String> producer, String... values) throws Exception {
        producer.beginTransaction();
        send(producer, 0, values);
        producer.commitTransaction();
    }

    private static void addOffsets(KafkaProducer<String, String> producer, long offset, ConsumerGroupMetadata group) {
        producer.sendOffsetsToTransaction(Map.of(PLACE, new OffsetAndMetadata(offset)), group);
    }

    private static List<String> take(KafkaConsumer<String, String> consumer) {
        List<String> values = new ArrayList<>();
        Checks.until(
            () -> values.size() == RECORDS,
            () -> {
                for (ConsumerRecord<String, String> record : consumer.poll(SHORT)) {
                    values.add(record.value());
                }
            },
            "all was read");
        return values;
    }

    private static void idle(KafkaConsumer<String, String> consumer) {
        long deadline = System.currentTimeMillis() + 1_000;
        while (System.currentTimeMillis() < deadline) {
            Checks.check(consumer.poll(SHORT).isEmpty(), "there was more to read");
        }
    }

    private void idempotent() throws Exception {
        try (KafkaProducer<String, String> producer = producer(1, false)) {
            send(producer, 0, "a");
            send(producer, 0, "b");
            send(producer, 0, "c", "d", "e");
            send(producer, 1, "f");
        }
    }

    private void lostPipeline() throws Exception {
        try (KafkaProducer<String, String> producer = producer(1, false, "batch.size", "1", "linger.ms", "0")) {
            send(producer, 0, "a");
            // Each is longer than what is left of a batch that was made for one.
            send(producer, 0, "b".repeat(200), "c".repeat(200), "d".repeat(200));
        }
    }

    private void transaction() throws Exception {
        try (KafkaProducer<String, String> producer = producer(1, true)) {
            producer.beginTransaction();
            send(producer, 0, "a", "b");
            send(producer, 1, "c");
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, 0, "d");
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
            transact(producer, "e");
        }
    }

    private void transform() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(1, "classic", "heartbeat.interval.ms", "200");
                KafkaProducer<String, String> producer = producer(1, true)) {
            consumer.subscribe(List.of(SOURCE));
            List<String> values = take(consumer);
            producer.beginTransaction();
            send(producer, 0, values.toArray(String[]::new));
            addOffsets(producer, 3, consumer.groupMetadata());
            producer.commitTransaction();
            producer.beginTransaction();
            addOffsets(producer, 2, consumer.groupMetadata());
            producer.abortTransaction();
            idle(consumer);
        }
    }

    private void group(String protocol, String... more) {
        try (KafkaConsumer<String, String> consumer = consumer(1, protocol, more)) {
            consumer.subscribe(List.of(SOURCE));
            take(consumer);
            consumer.commitSync();
            idle(consumer);
        }
        try (KafkaConsumer<String, String> consumer = consumer(2, protocol, more)) {
            consumer.subscribe(List.of(SOURCE));
            Checks.until(() -> !consumer.assignment().isEmpty(), () -> consumer.poll(SHORT), "it is assigned");
            idle(consumer);
        }
    }

    private void fencedEnd() throws Exception {
        KafkaProducer<String, String> first = producer(1, true);
        first.beginTransaction();
        send(first, 0, "a");
        try (KafkaProducer<String, String> second = producer(2, true)) {
            second.beginTransaction();
            send(second, 0, "b");
            ignoring(first::commitTransaction);
            second.commitTransaction();
        }
        first.close(Duration.ZERO);
    }

    private void fencedProduce() throws Exception {
        KafkaProducer<String, String> first = producer(1, true);
        first.beginTransaction();
        send(first, 0, "a");
        try (KafkaProducer<String, String> second = producer(2, true)) {
            ignoring(() -> send(first, 0, "b"));
            ignoring(first::abortTransaction);
            transact(second, "c");
        }
        first.close(Duration.ZERO);
    }

    private void twoTransactions() throws Exception {
        try (KafkaProducer<String, String> producer = producer(1, true)) {
            transact(producer, "a");
            transact(producer, "b");
        }
    }

    private void lostProduce() throws Exception {
        try (KafkaProducer<String, String> producer = producer(1, true)) {
            producer.beginTransaction();
            send(producer, 0, "a");
            send(producer, 0, "b");
            send(producer, 0, "c");
            producer.commitTransaction();
        }
    }

    private void lostOffsets() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(1, "classic");
                KafkaProducer<String, String> producer = producer(1, true)) {
            producer.beginTransaction();
            addOffsets(producer, 2, consumer.groupMetadata());
            producer.commitTransaction();
            transact(producer, "a");
        }
    }

    private void givenUp() throws Exception {
        String[] impatient = {"delivery.timeout.ms", "1000", "request.timeout.ms", "1000", "linger.ms", "0"};
        try (KafkaProducer<String, String> producer = producer(1, true, impatient)) {
            producer.beginTransaction();
            send(producer, 0, "a");
            ignoring(() -> send(producer, 0, "b"));
            producer.abortTransaction();
            transact(producer, "c");
        }
    }

    private interface Step {
        void go() throws Exception;
    }

    private static void ignoring(Step step) throws Exception {
        try {
            step.go();
        } catch (KafkaException | java.util.concurrent.ExecutionException error) {
            return; // the scenario is about what is sent then
        }
        throw new AssertionError("it was to fail");
    }
}
