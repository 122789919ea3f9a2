import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What the programs share: settings of clients, and checks that say what they saw. A step that passed is a line. */
final class Checks {
    static final Duration POLL = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;

    private Checks() {}

    static Map<String, Object> producer(String bootstrap, String... more) {
        Map<String, Object> settings = settings(bootstrap, more);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        return settings;
    }

    static Map<String, Object> consumer(String bootstrap, String... more) {
        Map<String, Object> settings = settings(bootstrap, more);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.putIfAbsent("auto.offset.reset", "earliest");
        settings.putIfAbsent("enable.auto.commit", false);
        settings.putIfAbsent("isolation.level", "read_committed");
        return settings;
    }

    static Map<String, Object> settings(String bootstrap, String... more) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        for (int n = 0; n < more.length; n += 2) {
            settings.put(more[n], more[n + 1]);
        }
        return settings;
    }

    static void passed(String step) {
        System.out.println("passed: " + step);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void same(Object found, Object wanted, String what) {
        check(wanted.equals(found), what + " is " + found + ", not " + wanted);
    }

    /** Runs what must fail with one of these, also as the cause of an ExecutionException. */
    static void fails(Callable<?> call, String what, Class<?>... wanted) throws Exception {
        Throwable thrown = null;
        try {
            call.call();
        } catch (ExecutionException error) {
            thrown = error.getCause();
        } catch (Exception error) {
            thrown = error;
        }
        for (Class<?> one : wanted) {
            if (one.isInstance(thrown)) {
                return;
            }
        }
        throw new AssertionError(what + " ended with " + thrown, thrown);
    }

    /** Does something again and again until a condition holds. */
    static void until(BooleanSupplier holds, Runnable step, String what) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            check(System.currentTimeMillis() < deadline, "waited in vain until " + what);
            step.run();
        }
    }
}
