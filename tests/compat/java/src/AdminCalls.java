import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeProducersResult.PartitionProducerState;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The administrator's calls, each with what it answers and how it fails. */
final class AdminCalls {
    private static final String TOPIC = "admin-calls";
    private static final TopicPartition FIRST = new TopicPartition(TOPIC, 0);

    private final String bootstrap;
    private final Admin admin;

    private AdminCalls(String bootstrap, Admin admin) {
        this.bootstrap = bootstrap;
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Checks.settings(arguments[0]))) {
            AdminCalls program = new AdminCalls(arguments[0], admin);
            program.cluster();
            program.topics();
            program.configs();
            program.records();
            program.groups();
            program.transactions();
            program.deletion();
        }
    }

    private void cluster() throws Exception {
        Checks.same(admin.describeCluster().nodes().get().size(), 1, "how many nodes there are");
        Checks.check(!admin.describeCluster().clusterId().get().isEmpty(), "the cluster has an id");
        Checks.check(admin.describeCluster().controller().get() != null, "the cluster has a controller");
        Checks.check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("transaction.version"),
            "transaction.version is a feature");
        Checks.passed("cluster");
    }

    private void topics() throws Exception {
        NewTopic topic = new NewTopic(TOPIC, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
        admin.createTopics(List.of(topic)).all().get();
        Checks.fails(() -> admin.createTopics(List.of(topic)).all().get(), "making it again", TopicExistsException.class);
        Checks.fails(() -> admin.createTopics(List.of(new NewTopic("no/such", 1, (short) 1))).all().get(),
            "a name with a slash", InvalidTopicException.class);
        Checks.fails(() -> admin.createTopics(List.of(new NewTopic("none", 0, (short) 1))).all().get(),
            "a topic without partitions", InvalidPartitionsException.class);
        Checks.check(admin.listTopics().names().get().contains(TOPIC), "the topic is listed");
        admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(3))).all().get();
        TopicDescription found = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC);
        Checks.same(found.partitions().size(), 3, "how many partitions there are");
        Checks.same(found.partitions().get(0).isr().size(), 1, "how many replicas are in sync");
        Checks.same(
            admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(found.topicId())))
                .allTopicIds().get().get(found.topicId()).name(),
            TOPIC, "the topic of the id");
        Checks.fails(() -> admin.describeTopics(List.of("absent")).allTopicNames().get(), "an absent topic",
            UnknownTopicOrPartitionException.class);
        Checks.passed("topics");
    }

    private String config(String name) throws ExecutionException, InterruptedException {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
    }

    private void alter(String name, String value, AlterConfigOp.OpType type) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        Collection<AlterConfigOp> changes = List.of(new AlterConfigOp(new ConfigEntry(name, value), type));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    private void configs() throws Exception {
        Checks.same(config("retention.ms"), "3600000", "retention.ms");
        alter("retention.ms", "7200000", AlterConfigOp.OpType.SET);
        Checks.same(config("retention.ms"), "7200000", "retention.ms after it was set");
        alter("cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        Checks.same(Set.of(config("cleanup.policy").split(",")), Set.of("delete", "compact"), "cleanup.policy");
        alter("cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT);
        Checks.same(config("cleanup.policy"), "delete", "cleanup.policy after a subtraction");
        alter("retention.ms", "", AlterConfigOp.OpType.DELETE);
        Checks.same(config("retention.ms"), "604800000", "retention.ms after its removal");
        Checks.fails(() -> {
            alter("retention.ms", "soon", AlterConfigOp.OpType.SET);
            return null;
        }, "a retention that is no number", InvalidConfigurationException.class);
        ConfigResource node = new ConfigResource(ConfigResource.Type.BROKER,
            String.valueOf(admin.describeCluster().nodes().get().iterator().next().id()));
        Checks.check(admin.describeConfigs(List.of(node)).all().get().get(node).entries().size() > 10, "a node has settings");
        Checks.passed("configs");
    }

    private ListOffsetsResultInfo offset(OffsetSpec which) throws Exception {
        return admin.listOffsets(Map.of(FIRST, which)).partitionResult(FIRST).get();
    }

    private void records() throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Checks.producer(bootstrap))) {
            for (int n = 0; n < 10; n++) {
                producer.send(new ProducerRecord<>(TOPIC, 0, 1_000L * n, "k", "v" + n));
            }
        }
        Checks.same(offset(OffsetSpec.earliest()).offset(), 0L, "the earliest offset");
        Checks.same(offset(OffsetSpec.latest()).offset(), 10L, "the latest offset");
        Checks.same(offset(OffsetSpec.forTimestamp(3_500)).offset(), 4L, "the offset for a timestamp");
        Checks.same(offset(OffsetSpec.maxTimestamp()).timestamp(), 9_000L, "the largest timestamp");
        long low = admin.deleteRecords(Map.of(FIRST, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(FIRST).get().lowWatermark();
        Checks.same(low, 4L, "the low watermark");
        Checks.same(offset(OffsetSpec.earliest()).offset(), 4L, "the earliest offset after a deletion");
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        Checks.check(admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).values().stream()
            .anyMatch(one -> one.replicaInfos().containsKey(FIRST) && one.replicaInfos().get(FIRST).size() > 0),
            "the log's folder tells the partition's size");
        Checks.passed("records");
    }

    private void groups() throws Exception {
        admin.alterConsumerGroupOffsets("set-by-admin", Map.of(FIRST, new OffsetAndMetadata(7, "note"))).all().get();
        OffsetAndMetadata found = admin.listConsumerGroupOffsets("set-by-admin").partitionsToOffsetAndMetadata().get().get(FIRST);
        Checks.same(found.offset(), 7L, "the committed offset");
        Checks.same(found.metadata(), "note", "its metadata");
        Checks.check(admin.describeConsumerGroups(List.of("set-by-admin")).all().get().get("set-by-admin").members().isEmpty(),
            "the group has no members");
        admin.deleteConsumerGroupOffsets("set-by-admin", Set.of(FIRST)).all().get();
        Checks.check(!admin.listConsumerGroupOffsets("set-by-admin").partitionsToOffsetAndMetadata().get().containsKey(FIRST),
            "the offset is gone");
        admin.alterConsumerGroupOffsets("deleted-by-admin", Map.of(FIRST, new OffsetAndMetadata(7))).all().get();
        admin.deleteConsumerGroups(List.of("deleted-by-admin")).all().get();
        Checks.fails(() -> admin.deleteConsumerGroups(List.of("deleted-by-admin")).all().get(), "deleting it again",
            GroupIdNotFoundException.class);
        Checks.passed("groups");
    }

    private void transactions() throws Exception {
        String id = "admin-calls-txn";
        try (KafkaProducer<String, String> producer =
            new KafkaProducer<>(Checks.producer(bootstrap, "transactional.id", id))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(TOPIC, 0, "k", "open")).get();
            TransactionListing listed = admin.listTransactions().all().get().stream()
                .filter(one -> one.transactionalId().equals(id)).findFirst().orElseThrow();
            Checks.same(listed.state(), TransactionState.ONGOING, "the listed state");
            Checks.same(admin.describeTransactions(List.of(id)).description(id).get().topicPartitions(), Set.of(FIRST),
                "the transaction's partitions");
            PartitionProducerState state = admin.describeProducers(List.of(FIRST)).partitionResult(FIRST).get();
            ProducerState ours = state.activeProducers().stream()
                .filter(one -> one.producerId() == listed.producerId()).findFirst().orElseThrow();
            Checks.same(ours.currentTransactionStartOffset().getAsLong(), 10L, "where the transaction begins");
            admin.fenceProducers(List.of(id)).all().get();
            Checks.fails(() -> {
                producer.commitTransaction();
                return null;
            }, "the commit of a fenced producer", ProducerFencedException.class);
        }
        Checks.fails(() -> admin.describeTransactions(List.of("absent")).all().get(), "an absent transactional id",
            TransactionalIdNotFoundException.class);
        Checks.passed("transactions");
    }

    private void deletion() throws Exception {
        admin.deleteTopics(List.of(TOPIC)).all().get();
        Checks.fails(() -> admin.deleteTopics(List.of(TOPIC)).all().get(), "deleting it again",
            UnknownTopicOrPartitionException.class);
        Checks.passed("deletion");
    }
}
