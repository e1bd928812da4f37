import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.value.MapValue;
import org.msgpack.value.Value;
import org.msgpack.value.ValueFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;
import org.springframework.kafka.support.TopicPartitionOffset;
import org.springframework.kafka.support.TopicPartitionOffset.SeekPosition;

/**
 * Embeds texts and prints the similarity of each to the first: java -jar embed.jar SERVERS MODEL TEXT...
 *
 * <p>The variable TASK may be embed_sparse or embed_tokens, for models that have such embeddings.
 *
 * <p>In a Spring Boot application the two factories and the template are beans; `embed` stays the same.
 */
public final class Embed {
    private static final String REPLY_TOPIC = "penstock.replies";
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        List<String> texts = List.of(arguments).subList(2, arguments.length);
        ReplyingKafkaTemplate<byte[], byte[], byte[]> template = template(arguments[0]);
        int status = 0;
        try {
            template.start();
            template.waitForAssignment(TIMEOUT); // a reply sent before this could be missed
            double[] similarities = similarities(embed(template, arguments[1], texts));
            for (int i = 0; i < similarities.length; i++) {
                System.out.printf("%.3f  %s%n", similarities[i], texts.get(i));
            }
        } catch (IllegalArgumentException error) {
            System.err.println(error.getMessage());
            status = 1;
        } finally { // a Spring application does this itself
            template.stop();
            template.destroy();
        }
        System.exit(status);
    }

    static MapValue embed(ReplyingKafkaTemplate<byte[], byte[], byte[]> template, String model, List<String> texts)
            throws Exception {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>("penstock.requests." + model, request(model, texts));
        long deadlineMs = System.currentTimeMillis() + TIMEOUT.toMillis();
        record.headers().add("penstock-deadline-ms", Long.toString(deadlineMs).getBytes(StandardCharsets.US_ASCII));
        return decode(template.sendAndReceive(record, TIMEOUT).get().value());
    }

    private static byte[] request(String model, List<String> texts) throws IOException {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            String task = System.getenv("TASK");
            packer.packMapHeader(task == null ? 5 : 4);
            packer.packString("v").packInt(1);
            packer.packString("model").packString(model);
            packer.packString("task").packString(task == null ? "embed" : task);
            packer.packString("text").packArrayHeader(texts.size());
            for (String text : texts) {
                packer.packString(text);
            }
            if (task == null) {
                packer.packString("opts").packMapHeader(1).packString("normalize").packBoolean(true);
            }
            return packer.toByteArray();
        }
    }

    /** Reads a reply; an error reply becomes an exception with its code and message. */
    private static MapValue decode(byte[] value) throws IOException {
        MapValue reply = MessagePack.newDefaultUnpacker(value).unpackValue().asMapValue();
        if (!get(reply, "ok").asBooleanValue().getBoolean()) {
            MapValue error = get(reply, "error").asMapValue();
            throw new IllegalArgumentException(get(error, "code") + ": " + get(error, "message"));
        }
        return reply;
    }

    /** Of each text to the first: the dot product, or the sum of the best one of each token. */
    private static double[] similarities(MapValue reply) {
        Value sparse = get(reply, "sparse");
        if (sparse != null) {
            List<Map<Integer, Float>> rows = weights(sparse.asMapValue());
            return rows.stream().mapToDouble(row -> dot(rows.get(0), row)).toArray();
        }
        Value tokens = get(reply, "token_vectors");
        List<float[][]> rows = vectors(tokens == null ? reply : tokens.asMapValue());
        return rows.stream().mapToDouble(row -> best(rows.get(0), row)).toArray();
    }

    /** Weights of each text by token id. */
    private static List<Map<Integer, Float>> weights(MapValue table) {
        ByteBuffer ids = data(table, "ids");
        ByteBuffer weights = data(table, "weights");
        List<Map<Integer, Float>> rows = new ArrayList<>();
        for (ByteBuffer lens = data(table, "lens"); lens.hasRemaining(); ) {
            Map<Integer, Float> row = new HashMap<>();
            for (int left = lens.getInt(); left > 0; left--) {
                row.put(ids.getInt(), weights.getFloat());
            }
            rows.add(row);
        }
        return rows;
    }

    /** Vectors of each text: one, or one for each token. */
    private static List<float[][]> vectors(MapValue table) {
        int dim = get(table, "shape").asArrayValue().get(1).asIntegerValue().asInt();
        ByteBuffer numbers = data(table, "data");
        ByteBuffer lens = get(table, "lens") == null ? null : data(table, "lens");
        List<float[][]> rows = new ArrayList<>();
        while (numbers.hasRemaining()) {
            float[][] row = new float[lens == null ? 1 : lens.getInt()][dim];
            for (float[] vector : row) {
                for (int i = 0; i < dim; i++) {
                    vector[i] = numbers.getFloat();
                }
            }
            rows.add(row);
        }
        return rows;
    }

    private static ByteBuffer data(MapValue map, String key) {
        return get(map, key).asBinaryValue().asByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }

    private static Value get(MapValue map, String key) {
        return map.map().get(ValueFactory.newString(key));
    }

    private static double best(float[][] left, float[][] right) {
        double sum = 0;
        for (float[] one : left) {
            sum += Arrays.stream(right).mapToDouble(other -> dot(one, other)).max().getAsDouble();
        }
        return sum;
    }

    private static double dot(Map<Integer, Float> left, Map<Integer, Float> right) {
        double sum = 0;
        for (var entry : left.entrySet()) {
            sum += (double) entry.getValue() * right.getOrDefault(entry.getKey(), 0f);
        }
        return sum;
    }

    private static double dot(float[] left, float[] right) {
        double sum = 0;
        for (int i = 0; i < left.length; i++) {
            sum += (double) left[i] * right[i];
        }
        return sum;
    }

    private static ReplyingKafkaTemplate<byte[], byte[], byte[]> template(String servers) {
        var producers = new DefaultKafkaProducerFactory<byte[], byte[]>(
                Map.of(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, servers),
                new ByteArraySerializer(),
                new ByteArraySerializer());
        var consumers = new DefaultKafkaConsumerFactory<byte[], byte[]>(
                Map.of(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, servers),
                new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
        // A partition of its own choice instead of a consumer group: the template then sends kafka_replyPartition too.
        var inbox = new ContainerProperties(new TopicPartitionOffset(REPLY_TOPIC, 0, SeekPosition.END));
        inbox.setGroupId("embed-example"); // the container requires one; nothing is committed for replies that matter
        var template = new ReplyingKafkaTemplate<>(producers, new KafkaMessageListenerContainer<>(consumers, inbox));
        template.setSharedReplyTopic(true); // other clients' replies are no errors
        return template;
    }
}
