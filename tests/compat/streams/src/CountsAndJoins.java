import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyQueryMetadata;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/**
 * One instance of an application that counts the words of lines, and joins orders with their payments.
 *
 * <p>Its one argument is a file with the settings of Kafka Streams. At its application.server it answers GET /WORD with
 * the word's count (asked of the instance that has it), and GET /hosts/WORD with who has it: the active, and standbys.
 */
final class CountsAndJoins {
    private static final String COUNTS = "counts";
    private static final Duration WINDOW = Duration.ofMillis(500);
    /** Longer than any test's input is, in the time of its records: nothing comes too late. */
    private static final Duration GRACE = Duration.ofDays(1);
    private static final Duration HTTP_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(20);

    private final KafkaStreams streams;
    private final HostInfo here;
    private final HttpClient client = HttpClient.newBuilder().connectTimeout(HTTP_TIMEOUT).build();

    private CountsAndJoins(Properties settings) {
        streams = new KafkaStreams(topology(), settings);
        here = HostInfo.buildFromEndpoint(settings.getProperty("application.server"));
    }

    public static void main(String[] arguments) throws IOException {
        Properties settings = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            settings.load(file);
        }
        new CountsAndJoins(settings).run();
    }

    private static Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        var strings = Serdes.String();
        builder.stream("lines", Consumed.with(strings, strings))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((line, word) -> word, Grouped.with(strings, strings))
            .count(Materialized.as(COUNTS))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to("counted", Produced.with(strings, strings));
        var payments = builder.stream("payments", Consumed.with(strings, strings));
        builder.stream("orders", Consumed.with(strings, strings))
            .join(
                payments,
                (order, payment) -> order + " " + payment,
                JoinWindows.ofTimeDifferenceAndGrace(WINDOW, GRACE),
                StreamJoined.with(strings, strings, strings))
            .to("paid", Produced.with(strings, strings));
        return builder.build();
    }

    private void run() throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(here.host(), here.port()), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", this::answer);
        streams.setStateListener((now, before) -> {
            System.out.println("state " + now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1); // a test sees that it has ended
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(CLOSE_TIMEOUT);
            server.stop(0);
        }));
        server.start();
        streams.start();
    }

    private void answer(HttpExchange request) throws IOException {
        String path = request.getRequestURI().getPath().substring(1);
        int code = 200;
        String body;
        try {
            body = path.startsWith("hosts/") ? hosts(path.substring("hosts/".length())) : count(path);
        } catch (InvalidStateStoreException | IOException error) {
            code = 503;
            body = error.toString();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return;
        }
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        try (request) {
            request.sendResponseHeaders(code, bytes.length);
            request.getResponseBody().write(bytes);
        }
    }

    private KeyQueryMetadata found(String word) throws IOException {
        KeyQueryMetadata found = streams.queryMetadataForKey(COUNTS, word, Serdes.String().serializer());
        if (found == null || found.equals(KeyQueryMetadata.NOT_AVAILABLE)) {
            throw new IOException("nobody has the word now");
        }
        return found;
    }

    private String hosts(String word) throws IOException {
        KeyQueryMetadata found = found(word);
        StringBuilder hosts = new StringBuilder(name(found.activeHost()));
        found.standbyHosts().forEach(one -> hosts.append(' ').append(name(one)));
        return hosts.toString();
    }

    private String count(String word) throws IOException, InterruptedException {
        HostInfo active = found(word).activeHost();
        if (active.equals(here)) {
            ReadOnlyKeyValueStore<String, Long> counts =
                streams.store(StoreQueryParameters.fromNameAndType(COUNTS, QueryableStoreTypes.keyValueStore()));
            Long count = counts.get(word);
            return count == null ? "0" : count.toString();
        }
        HttpRequest there = HttpRequest.newBuilder(URI.create("http://" + name(active) + "/" + word))
            .timeout(HTTP_TIMEOUT).build();
        HttpResponse<String> answer = client.send(there, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.body());
        }
        return answer.body();
    }

    private static String name(HostInfo host) {
        return host.host() + ":" + host.port();
    }
}
