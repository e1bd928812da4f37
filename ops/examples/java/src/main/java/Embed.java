import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
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
 * Embeds texts and prints the cosine similarity of each to the first: java -jar embed.jar SERVERS MODEL TEXT...
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
            float[][] vectors = embed(template, arguments[1], texts);
            for (int i = 0; i < vectors.length; i++) {
                System.out.printf("%.3f  %s%n", dot(vectors[0], vectors[i]), texts.get(i));
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

    static float[][] embed(ReplyingKafkaTemplate<byte[], byte[], byte[]> template, String model, List<String> texts)
            throws Exception {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>("penstock.requests." + model, request(model, texts));
        long deadlineMs = System.currentTimeMillis() + TIMEOUT.toMillis();
        record.headers().add("penstock-deadline-ms", Long.toString(deadlineMs).getBytes(StandardCharsets.US_ASCII));
        return vectors(template.sendAndReceive(record, TIMEOUT).get().value());
    }

    private static byte[] request(String model, List<String> texts) throws IOException {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packMapHeader(5);
            packer.packString("v").packInt(1);
            packer.packString("model").packString(model);
            packer.packString("task").packString("embed");
            packer.packString("text").packArrayHeader(texts.size());
            for (String text : texts) {
                packer.packString(text);
            }
            packer.packString("opts").packMapHeader(1).packString("normalize").packBoolean(true);
            return packer.toByteArray();
        }
    }

    /** Decodes a reply's float32 matrix; an error reply becomes an exception with its code and message. */
    private static float[][] vectors(byte[] value) throws IOException {
        MapValue reply = MessagePack.newDefaultUnpacker(value).unpackValue().asMapValue();
        if (!get(reply, "ok").asBooleanValue().getBoolean()) {
            MapValue error = get(reply, "error").asMapValue();
            throw new IllegalArgumentException(get(error, "code") + ": " + get(error, "message"));
        }
        int dim = get(reply, "shape").asArrayValue().get(1).asIntegerValue().asInt();
        ByteBuffer data = get(reply, "data").asBinaryValue().asByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
        FloatBuffer numbers = data.asFloatBuffer();
        float[][] vectors = new float[numbers.remaining() / dim][dim];
        for (float[] vector : vectors) {
            numbers.get(vector);
        }
        return vectors;
    }

    private static Value get(MapValue map, String key) {
        return map.map().get(ValueFactory.newString(key));
    }

    private static double dot(float[] left, float[] right) {
        double sum = 0;
        for (int i = 0; i < left.length; i++) {
            sum += left[i] * right[i];
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
