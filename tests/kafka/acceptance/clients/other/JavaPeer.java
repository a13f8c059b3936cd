import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Plays the roles of ../peer.py with the Java client: java JavaPeer PLAN. Plan and lines are those of ../errand.py. */
public final class JavaPeer {
    static final double AFTER_S = 0.3; // for this time a consumer waits for unexpected records
    static final double PATIENCE_S = 120; // for this time a consumer waits for missing records
    static final long SIZE = 100; // bytes of a record's value
    static final int BATCH_MAX = 32 << 20; // bytes of a batch that has all records of a partition

    static volatile boolean stopped;

    final Plan plan;
    final String topic;
    final int partitions;

    JavaPeer(Plan plan) {
        this.plan = plan;
        topic = plan.text("topic");
        partitions = (int) plan.number("partitions", 1);
    }

    public static void main(String[] words) throws Exception {
        Plan plan = new Plan(new Json(words[0]).value());
        Thread listener = new Thread(JavaPeer::listen);
        listener.setDaemon(true);
        listener.start();
        JavaPeer peer = new JavaPeer(plan);
        String result = switch (plan.text("role")) {
            case "produce" -> peer.produce();
            case "consume", "member" -> peer.consume();
            case "commit" -> peer.commit();
            case "committed" -> peer.committed();
            case "ask" -> peer.ask();
            default -> throw new IllegalArgumentException(plan.text("role"));
        };
        Path draft = Path.of(plan.text("result") + ".draft");
        Files.writeString(draft, result);
        Files.move(draft, Path.of(plan.text("result")), StandardCopyOption.ATOMIC_MOVE);
        System.exit(0);
    }

    static void listen() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            String line = lines.readLine();
            while (line != null && !line.strip().equals("stop")) {
                line = lines.readLine();
            }
        } catch (java.io.IOException error) {
            System.err.println(error);
        }
        stopped = true;
    }

    static double now() {
        return System.nanoTime() / 1e9; // on Linux this is the monotonic clock, as in Python
    }

    static synchronized void say(String key, Object value) {
        System.out.println("{\"at\": " + now() + ", \"" + key + "\": " + value + "}");
        System.out.flush();
    }

    Properties settings() {
        Properties made = new Properties();
        made.put("bootstrap.servers", plan.text("bootstrap"));
        made.put("client.id", plan.text("name"));
        return made;
    }

    // produce ---------------------------------------------------------------------------------------------------------

    final List<String> acked = new ArrayList<>();
    final List<String> failed = new ArrayList<>();

    String produce() throws InterruptedException {
        Properties made = settings();
        Object acks = plan.get("acks");
        boolean isIdempotent = acks == null || acks.equals("all");
        made.put("enable.idempotence", isIdempotent);
        made.put("acks", isIdempotent ? "all" : Long.toString((long) plan.number("acks", 1)));
        if (plan.get("codec") != null) {
            made.put("compression.type", plan.text("codec"));
        }
        boolean oneBatch = plan.get("one_batch") != null;
        if (oneBatch) {
            made.put("batch.size", BATCH_MAX);
            made.put("max.request.size", BATCH_MAX);
            made.put("buffer.memory", 2L * BATCH_MAX);
            made.put("linger.ms", 60_000);
        }
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(made, new ByteArraySerializer(), new ByteArraySerializer());
        say("ready", true);
        double rate = plan.number("rate", 0);
        double most = plan.number("count", 0) > 0 ? plan.number("count", 0) : Double.POSITIVE_INFINITY;
        int size = (int) plan.number("size", SIZE);
        Semaphore room = new Semaphore(oneBatch ? Integer.MAX_VALUE : (int) plan.number("in_flight", 500));
        double begun = now();
        double end = begun + plan.number("seconds", Double.POSITIVE_INFINITY);
        long sent = 0;
        while (!stopped && sent < most && now() <= end) {
            double early = begun + (rate > 0 ? sent / rate : 0) - now();
            if (early > 0) {
                Thread.sleep(Math.min(10, (long) (early * 1000) + 1));
                continue;
            }
            if (!room.tryAcquire(10, java.util.concurrent.TimeUnit.MILLISECONDS)) {
                continue;
            }
            send(producer, sent, size, room);
            sent++;
        }
        producer.flush();
        double took = now() - begun;
        List<String> throttles = new ArrayList<>();
        producer.metrics().forEach((name, metric) -> {
            boolean isThrottle = name.name().startsWith("produce-throttle-time-");
            if (isThrottle && metric.metricValue() instanceof Double value && !value.isNaN()) {
                throttles.add(value.toString());
            }
        });
        producer.close();
        return "{\"sent\": " + sent + ", \"acked\": " + acked + ", \"failed\": " + failed + ", \"seconds\": " + took
                + ", \"throttles_ms\": " + throttles + "}";
    }

    void send(KafkaProducer<byte[], byte[]> producer, long number, int size, Semaphore room) {
        String head = plan.text("tag") + " " + number + " ";
        byte[] value = (head + ".".repeat(Math.max(0, size - head.length()))).getBytes(StandardCharsets.UTF_8);
        double at = now();
        int partition = (int) (number % partitions);
        producer.send(new ProducerRecord<>(topic, partition, time(number / partitions), null, value), (sent, error) -> {
            synchronized (this) {
                if (error == null) {
                    long offset = sent.hasOffset() ? sent.offset() : -1;
                    acked.add("[" + number + ", " + offset + ", " + (now() - at) + "]");
                } else {
                    failed.add("[" + number + ", \"" + error.getClass().getSimpleName() + "\"]");
                }
            }
            room.release();
        });
    }

    /** The time in ms of a partition's record, or null if the client chooses it. */
    Long time(long number) {
        if (!(plan.get("times") instanceof List<?> times)) {
            return null;
        }
        if (plan.get("step") == null) {
            return ((Number) times.get((int) number)).longValue();
        }
        return ((Number) times.get(0)).longValue() + number * (long) plan.number("step", 0);
    }

    // consume ---------------------------------------------------------------------------------------------------------

    KafkaConsumer<byte[], byte[]> consumer() {
        Properties made = settings();
        made.put("auto.offset.reset", "earliest");
        if (plan.get("group") == null) {
            made.put("enable.auto.commit", false);
        } else {
            made.put("group.id", plan.text("group"));
        }
        if (plan.get("session_ms") != null) {
            made.put("session.timeout.ms", (int) plan.number("session_ms", 0));
            made.put("heartbeat.interval.ms", (int) plan.number("heartbeat_ms", 0));
        }
        if (plan.get("instance") != null) {
            made.put("group.instance.id", plan.text("instance"));
        }
        return new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    List<TopicPartition> parts() {
        List<TopicPartition> found = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            found.add(new TopicPartition(topic, number));
        }
        return found;
    }

    String consume() {
        boolean isMember = plan.text("role").equals("member");
        KafkaConsumer<byte[], byte[]> consumer = consumer();
        if (isMember) {
            List<String> topics = new ArrayList<>();
            if (plan.get("topics") instanceof List<?> given) {
                given.forEach(name -> topics.add((String) name));
            } else {
                topics.add(topic);
            }
            consumer.subscribe(topics);
        } else {
            consumer.assign(parts());
            consumer.seekToBeginning(parts());
        }
        say("ready", true);
        List<String> rows = new ArrayList<>();
        Set<String> places = new HashSet<>();
        double begun = now();
        double last = begun;
        double enough = plan.number("expect", Double.POSITIVE_INFINITY);
        List<Integer> assigned = List.of();
        while (!stopped) {
            var polled = consumer.poll(Duration.ofMillis(100));
            double now = now();
            for (ConsumerRecord<byte[], byte[]> one : polled) {
                String value = new String(one.value(), StandardCharsets.UTF_8).replaceAll("[. ]+$", "");
                rows.add("[" + one.partition() + ", " + one.offset() + ", " + quoted(value) + "]");
                places.add(one.partition() + " " + one.offset());
            }
            if (!polled.isEmpty()) {
                last = now;
                say("read", places.size());
            } else if (enough < Double.POSITIVE_INFINITY
                    && now > last + (rows.size() >= enough ? AFTER_S : plan.number("patience", PATIENCE_S))) {
                break;
            }
            if (isMember) {
                List<Integer> found = numbers(consumer.assignment());
                if (!found.equals(assigned)) {
                    assigned = found;
                    say("assigned", assigned);
                }
            }
        }
        say("closing", true);
        consumer.close();
        say("closed", true);
        return "{\"rows\": " + rows + ", \"seconds\": " + (last - begun) + "}";
    }

    static List<Integer> numbers(Collection<TopicPartition> parts) {
        return parts.stream().map(TopicPartition::partition).sorted(Comparator.naturalOrder()).toList();
    }

    // offsets ---------------------------------------------------------------------------------------------------------

    String commit() {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        given("offsets").forEach((part, offset) -> offsets.put(part, new OffsetAndMetadata(offset)));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.commitSync(offsets);
        }
        return "{}";
    }

    String committed() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(new HashSet<>(parts()));
            Map<TopicPartition, Object> offsets = new HashMap<>();
            found.forEach((part, one) -> offsets.put(part, one == null ? 0 : one.offset()));
            return "{\"offsets\": " + object(offsets) + "}";
        }
    }

    String ask() throws Exception {
        Map<TopicPartition, Object> largest = new HashMap<>();
        try (Admin admin = Admin.create(settings())) {
            Map<TopicPartition, RecordsToDelete> delete = new HashMap<>();
            given("delete").forEach((part, offset) -> delete.put(part, RecordsToDelete.beforeOffset(offset)));
            admin.deleteRecords(delete).all().get();
            Map<TopicPartition, OffsetSpec> specs = new HashMap<>();
            parts().forEach(part -> specs.put(part, OffsetSpec.maxTimestamp()));
            Map<TopicPartition, ListOffsetsResultInfo> found = admin.listOffsets(specs).all().get();
            found.forEach((part, one) -> largest.put(part, "[" + one.offset() + ", " + one.timestamp() + "]"));
        }
        Map<TopicPartition, Object> offsets = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            Map<TopicPartition, Long> asked = new HashMap<>();
            parts().forEach(part -> asked.put(part, (long) plan.number("at", 0)));
            Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(asked);
            found.forEach((part, one) -> offsets.put(part, one == null ? -1 : one.offset()));
        }
        return "{\"at\": " + object(offsets) + ", \"largest\": " + object(largest) + "}";
    }

    /** The offsets of an object of the plan, which has an offset for each partition. */
    Map<TopicPartition, Long> given(String key) {
        Map<TopicPartition, Long> found = new HashMap<>();
        if (plan.get(key) instanceof Map<?, ?> offsets) {
            offsets.forEach((number, offset) -> found.put(
                    new TopicPartition(topic, Integer.parseInt((String) number)), ((Number) offset).longValue()));
        }
        return found;
    }

    /** An object of JSON with a value for each partition. */
    static String object(Map<TopicPartition, Object> values) {
        List<String> pairs = new ArrayList<>();
        values.forEach((part, value) -> pairs.add("\"" + part.partition() + "\": " + value));
        return "{" + String.join(", ", pairs) + "}";
    }

    static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    // the plan --------------------------------------------------------------------------------------------------------

    /** The plan, an object of JSON. */
    record Plan(Object value) {
        Object get(String key) {
            return ((Map<?, ?>) value).get(key);
        }

        String text(String key) {
            return (String) get(key);
        }

        double number(String key, double otherwise) {
            return get(key) instanceof Number number ? number.doubleValue() : otherwise;
        }
    }

    /** Reads JSON. The text comes from Python's json.dumps, so it is right, and all its characters are ASCII. */
    static final class Json {
        private final String text;
        private int at;

        Json(String text) {
            this.text = text;
        }

        Object value() {
            char first = next();
            at--;
            return switch (first) {
                case '{' -> object();
                case '[' -> array();
                case '"' -> string();
                default -> word();
            };
        }

        /** The next character that is no space. */
        private char next() {
            while (text.charAt(at) == ' ') {
                at++;
            }
            return text.charAt(at++);
        }

        private Map<String, Object> object() {
            Map<String, Object> found = new HashMap<>();
            next();
            while (next() != '}') {
                if (text.charAt(at - 1) != ',') {
                    at--;
                }
                next();
                at--;
                String key = string();
                next();
                found.put(key, value());
            }
            return found;
        }

        private List<Object> array() {
            List<Object> found = new ArrayList<>();
            next();
            while (next() != ']') {
                if (text.charAt(at - 1) != ',') {
                    at--;
                }
                found.add(value());
            }
            return found;
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char one = text.charAt(at);
                if (one == '\\') {
                    one = text.charAt(++at);
                    switch (one) {
                        case 'n' -> one = '\n';
                        case 't' -> one = '\t';
                        case 'r' -> one = '\r';
                        case 'u' -> {
                            one = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                            at += 4;
                        }
                        default -> { }
                    }
                }
                found.append(one);
            }
            at++;
            return found.toString();
        }

        private Object word() {
            int begin = at;
            while (at < text.length() && ",]} ".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String found = text.substring(begin, at);
            return switch (found) {
                case "true" -> Boolean.TRUE;
                case "false" -> Boolean.FALSE;
                case "null" -> null;
                default -> Double.valueOf(found);
            };
        }
    }
}
