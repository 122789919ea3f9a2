import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Consume, transform, produce, with aborts in between, a zombie producer and a zombie member. */
final class ExactlyOnce {
    private static final int RECORDS = 600;
    private static final int PARTITIONS = 3;

    private final String bootstrap;
    private final String groupProtocol;
    private final String in;
    private final String out;
    private final String group;
    private int batches;

    private ExactlyOnce(String bootstrap, String groupProtocol) {
        this.bootstrap = bootstrap;
        this.groupProtocol = groupProtocol;
        this.in = "in-" + groupProtocol;
        this.out = "out-" + groupProtocol;
        this.group = "enrich-" + groupProtocol;
    }

    public static void main(String[] arguments) throws Exception {
        ExactlyOnce program = new ExactlyOnce(arguments[0], arguments[1]);
        program.fill();
        program.pipeline();
        program.readBack();
        program.zombieProducer();
        program.zombieMember();
    }

    private KafkaProducer<String, String> producer(String transactionalId) {
        return new KafkaProducer<>(Checks.producer(bootstrap, "transactional.id", transactionalId));
    }

    private KafkaConsumer<String, String> member() {
        return new KafkaConsumer<>(
            Checks.consumer(bootstrap, "group.id", group, "group.protocol", groupProtocol, "max.poll.records", "50"));
    }

    private void fill() throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Checks.producer(bootstrap, "compression.type", "lz4"))) {
            for (int n = 0; n < RECORDS; n++) {
                producer.send(new ProducerRecord<>(in, n % PARTITIONS, "k" + n % 7, String.valueOf(n)));
            }
        }
        Checks.passed("input");
    }

    /** Every third batch is aborted at first, and read again. */
    private void pipeline() {
        try (KafkaConsumer<String, String> consumer = member(); KafkaProducer<String, String> producer = producer(group)) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            int[] done = {0};
            Checks.until(() -> done[0] == RECORDS, () -> done[0] += batch(consumer, producer), "all was read");
        }
        Checks.passed("pipeline");
    }

    private int batch(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer) {
        ConsumerRecords<String, String> records = consumer.poll(Checks.POLL);
        if (records.isEmpty()) {
            return 0;
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        Map<TopicPartition, Long> firsts = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            producer.send(new ProducerRecord<>(out, record.key(), record.value()));
            firsts.putIfAbsent(partition, record.offset());
            offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        if (++batches % 3 == 0) {
            producer.flush();
            producer.abortTransaction();
            firsts.forEach(consumer::seek);
            return 0;
        }
        producer.commitTransaction();
        return records.count();
    }

    private void readBack() {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(Checks.consumer(bootstrap))) {
            List<TopicPartition> partitions = new ArrayList<>();
            reader.partitionsFor(out).forEach(one -> partitions.add(new TopicPartition(out, one.partition())));
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = reader.endOffsets(partitions);
            Checks.until(
                () -> partitions.stream().allMatch(one -> reader.position(one) >= ends.get(one)),
                () -> reader.poll(Checks.POLL).forEach(record -> values.add(record.value())),
                "the output was read");
        }
        Checks.same(values.size(), RECORDS, "how many there are");
        Checks.same(new TreeSet<>(values).size(), RECORDS, "how many different ones there are");
        Map<TopicPartition, OffsetAndMetadata> committed;
        try (KafkaConsumer<String, String> reader = member()) {
            committed = reader.committed(new TreeSet<>(List.of(0, 1, 2)).stream()
                .map(n -> new TopicPartition(in, n)).collect(java.util.stream.Collectors.toSet()));
        }
        long total = committed.values().stream().mapToLong(OffsetAndMetadata::offset).sum();
        Checks.same(total, (long) RECORDS, "the sum of the committed offsets");
        Checks.passed("read back");
    }

    private void zombieProducer() throws Exception {
        String id = "contended-" + groupProtocol;
        KafkaProducer<String, String> zombie = producer(id);
        zombie.initTransactions();
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(out, "zombie", "of a zombie")).get();
        try (KafkaProducer<String, String> next = producer(id)) {
            next.initTransactions();
            Checks.fails(
                run(zombie::commitTransaction), "the zombie's commit",
                ProducerFencedException.class, InvalidProducerEpochException.class);
            next.beginTransaction();
            next.send(new ProducerRecord<>(out, "next", "of the next")).get();
            next.commitTransaction();
        }
        zombie.close(java.time.Duration.ZERO);
        Checks.passed("zombie producer");
    }

    /** A transaction of a member that its group has replaced adds no offsets (KIP-447). */
    private void zombieMember() throws Exception {
        ConsumerGroupMetadata stale;
        try (KafkaConsumer<String, String> consumer = member()) {
            consumer.subscribe(List.of(in));
            Checks.until(() -> !consumer.assignment().isEmpty(), () -> consumer.poll(Checks.POLL), "partitions are assigned");
            stale = consumer.groupMetadata();
        }
        try (KafkaProducer<String, String> producer = producer("stale-" + groupProtocol)) {
            producer.initTransactions();
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition(in, 0), new OffsetAndMetadata(1));
            Checks.fails(run(() -> {
                producer.sendOffsetsToTransaction(offsets, stale);
                producer.commitTransaction();
            }), "a commit of offsets by a member that left", CommitFailedException.class);
            producer.abortTransaction();
        }
        Checks.passed("zombie member");
    }

    private static Callable<Void> run(Runnable action) {
        return () -> {
            action.run();
            return null;
        };
    }
}
