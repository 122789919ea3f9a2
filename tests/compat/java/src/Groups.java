import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Members come, share the partitions, commit, and leave; a static one returns to what it had. */
final class Groups {
    private static final int PARTITIONS = 6;
    private static final int RECORDS = 120;

    private final String bootstrap;
    private final String topic;
    private final List<String> settings;

    private Groups(String bootstrap, String topic, List<String> settings) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.settings = settings;
    }

    /** BOOTSTRAP TOPIC NAME VALUE ...: settings of the members. */
    public static void main(String[] arguments) throws Exception {
        List<String> all = List.of(arguments);
        Groups program = new Groups(all.get(0), all.get(1), all.subList(2, all.size()));
        program.fill();
        program.share();
        program.staticMember();
    }

    private KafkaConsumer<String, String> member(String group, String... more) {
        List<String> all = new ArrayList<>(settings);
        all.addAll(List.of("group.id", group));
        all.addAll(List.of(more));
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(Checks.consumer(bootstrap, all.toArray(String[]::new)));
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private void fill() {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Checks.producer(bootstrap))) {
            for (int n = 0; n < RECORDS; n++) {
                producer.send(new ProducerRecord<>(topic, n % PARTITIONS, null, String.valueOf(n)));
            }
        }
        Checks.passed("input");
    }

    private void share() {
        Set<String> seen = new HashSet<>();
        KafkaConsumer<String, String> first = member(topic);
        KafkaConsumer<String, String> second = member(topic);
        try (first; second) {
            Checks.until(
                () -> first.assignment().size() == PARTITIONS / 2 && second.assignment().size() == PARTITIONS / 2,
                () -> List.of(first, second).forEach(one -> one.poll(Checks.POLL).forEach(record -> seen.add(record.value()))),
                "two members have half of the partitions each");
            Set<TopicPartition> both = new HashSet<>(first.assignment());
            both.addAll(second.assignment());
            Checks.same(both.size(), PARTITIONS, "how many partitions are assigned");
            Checks.until(
                () -> seen.size() == RECORDS && positions(first) + positions(second) == RECORDS,
                () -> List.of(first, second).forEach(one -> one.poll(Checks.POLL).forEach(record -> seen.add(record.value()))),
                "all was read");
            first.commitSync();
            second.commitSync();
        }
        Checks.passed("two members share");
        try (KafkaConsumer<String, String> last = member(topic)) {
            Checks.until(() -> last.assignment().size() == PARTITIONS, () -> last.poll(Checks.POLL), "one has all");
            Map<TopicPartition, OffsetAndMetadata> committed = last.committed(last.assignment());
            long total = committed.values().stream().mapToLong(OffsetAndMetadata::offset).sum();
            Checks.same(total, (long) RECORDS, "the sum of the committed offsets");
            last.assignment().forEach(one -> Checks.same(last.position(one), committed.get(one).offset(), "the position"));
        }
        Checks.passed("one member takes over");
    }

    private static long positions(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private void staticMember() {
        String group = topic + "-static";
        Set<TopicPartition> before;
        try (KafkaConsumer<String, String> other = member(group, "group.instance.id", "two")) {
            try (KafkaConsumer<String, String> one = member(group, "group.instance.id", "one")) {
                Checks.until(
                    () -> one.assignment().size() == PARTITIONS / 2 && other.assignment().size() == PARTITIONS / 2,
                    () -> List.of(one, other).forEach(each -> each.poll(Checks.POLL)),
                    "two static members have half of the partitions each");
                before = new HashSet<>(one.assignment());
            }
            try (KafkaConsumer<String, String> returned = member(group, "group.instance.id", "one")) {
                Checks.until(
                    () -> !returned.assignment().isEmpty(),
                    () -> List.of(returned, other).forEach(each -> each.poll(Checks.POLL)),
                    "the static member has partitions again");
                Checks.same(new HashSet<>(returned.assignment()), before, "what the returned static member has");
                Checks.same(other.assignment().size(), PARTITIONS / 2, "what the other one has");
            }
        }
        Checks.passed("static member returns");
    }
}
