import java.util.Arrays;
import java.util.Map;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.io.kafka.KafkaIO;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.state.StateSpec;
import org.apache.beam.sdk.state.StateSpecs;
import org.apache.beam.sdk.state.ValueState;
import org.apache.beam.sdk.transforms.DoFn;
import org.apache.beam.sdk.transforms.ParDo;
import org.apache.beam.sdk.values.KV;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes each record of a topic to another one, numbered among those of its key. Runs until it is killed. */
final class NumberingPipeline {
    private NumberingPipeline() {}

    /** Arguments: bootstrap, shards of the sink, its group, and the options of Beam's runner. */
    public static void main(String[] arguments) {
        Pipeline pipeline = Pipeline.create(
            PipelineOptionsFactory.fromArgs(Arrays.copyOfRange(arguments, 3, arguments.length)).create());
        pipeline
            .apply("readings", KafkaIO.<String, String>read()
                .withBootstrapServers(arguments[0])
                .withTopic("readings")
                .withKeyDeserializer(StringDeserializer.class)
                .withValueDeserializer(StringDeserializer.class)
                .withConsumerConfigUpdates(Map.of("auto.offset.reset", "earliest"))
                .withReadCommitted()
                .withoutMetadata())
            .apply("numbering", ParDo.of(new Numbering()))
            .apply("numbered", KafkaIO.<String, String>write()
                .withBootstrapServers(arguments[0])
                .withTopic("numbered")
                .withKeySerializer(StringSerializer.class)
                .withValueSerializer(StringSerializer.class)
                .withEOS(Integer.parseInt(arguments[1]), arguments[2]));
        pipeline.run().waitUntilFinish();
    }

    private static final class Numbering extends DoFn<KV<String, String>, KV<String, String>> {
        private static final long serialVersionUID = 1;

        @StateId("seen")
        private final StateSpec<ValueState<Long>> spec = StateSpecs.value();

        @ProcessElement
        public void process(
            @Element KV<String, String> record,
            @StateId("seen") ValueState<Long> seen,
            OutputReceiver<KV<String, String>> out) {
            Long before = seen.read();
            long number = (before == null ? 0 : before) + 1;
            seen.write(number);
            out.output(KV.of(record.getKey(), record.getValue() + " " + number));
        }
    }
}
