import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** Writes each record of a topic to another one, with its number among those of its key. Runs until it is killed. */
final class CountingJob {
    private CountingJob() {}

    /** Arguments: bootstrap, how transactions are named, their timeout, checkpoint folder, parallelism, a checkpoint. */
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.dir", "file://" + arguments[3]);
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("taskmanager.memory.network.max", "32mb");
        settings.setString("taskmanager.memory.managed.size", "32mb");
        if (arguments.length > 5) {
            settings.setString("execution.state-recovery.path", "file://" + arguments[5]);
        }
        int parallelism = Integer.parseInt(arguments[4]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(parallelism, settings);
        KafkaSource<Tuple2<String, String>> source = KafkaSource.<Tuple2<String, String>>builder()
            .setBootstrapServers(arguments[0])
            .setTopics("readings")
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new KeysAndValues())
            .build();
        KafkaSink<Tuple2<String, String>> sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[1]))
            .setProperty("transaction.timeout.ms", arguments[2])
            .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<String, String>>builder()
                .setTopic("numbered")
                .setKeySerializationSchema(new Part(true))
                .setValueSerializationSchema(new Part(false))
                .build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "readings").uid("readings")
            .keyBy(record -> record.f0)
            .map(new Numbering()).uid("numbering").returns(Types.TUPLE(Types.STRING, Types.STRING))
            .sinkTo(sink).uid("numbered");
        environment.execute("counting");
    }

    private static final class KeysAndValues implements KafkaRecordDeserializationSchema<Tuple2<String, String>> {
        private static final long serialVersionUID = 1;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, String>> out) {
            out.collect(Tuple2.of(
                new String(record.key(), StandardCharsets.UTF_8), new String(record.value(), StandardCharsets.UTF_8)));
        }

        @Override
        public TypeInformation<Tuple2<String, String>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.STRING);
        }
    }

    /** A class, not a lambda: the connector looks for what a serializer takes, to tell of the job's lineage. */
    private static final class Part implements SerializationSchema<Tuple2<String, String>> {
        private static final long serialVersionUID = 1;

        private final boolean isKey;

        private Part(boolean isKey) {
            this.isKey = isKey;
        }

        @Override
        public byte[] serialize(Tuple2<String, String> record) {
            return (isKey ? record.f0 : record.f1).getBytes(StandardCharsets.UTF_8);
        }
    }

    private static final class Numbering extends RichMapFunction<Tuple2<String, String>, Tuple2<String, String>> {
        private static final long serialVersionUID = 1;

        private transient ValueState<Long> seen;

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(new ValueStateDescriptor<>("seen", Types.LONG));
        }

        @Override
        public Tuple2<String, String> map(Tuple2<String, String> record) throws Exception {
            long number = (seen.value() == null ? 0 : seen.value()) + 1;
            seen.update(number);
            return Tuple2.of(record.f0, record.f1 + " " + number);
        }
    }
}
