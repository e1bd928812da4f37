// Embeds texts and prints the cosine similarity of each to the first: embed SERVERS MODEL TEXT...
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/vmihailenco/msgpack/v5"
)

const (
	replyTopic = "penstock.replies"
	partition  = 0
	timeout    = 30 * time.Second
)

type request struct {
	Version int             `msgpack:"v"`
	Model   string          `msgpack:"model"`
	Task    string          `msgpack:"task"`
	Text    []string        `msgpack:"text"`
	Options map[string]bool `msgpack:"opts"`
}

type reply struct {
	OK    bool   `msgpack:"ok"`
	Shape []int  `msgpack:"shape"` // rows, dimensions
	Data  []byte `msgpack:"data"`  // float32, little-endian, row after row
	Error struct {
		Code    string `msgpack:"code"`
		Message string `msgpack:"message"`
	} `msgpack:"error"`
}

func main() {
	texts := os.Args[3:]
	vectors, err := embed(os.Args[1], os.Args[2], texts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i, vector := range vectors {
		fmt.Printf("%.3f  %s\n", dot(vectors[0], vector), texts[i])
	}
}

func embed(servers, model string, texts []string) ([][]float32, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.AllowAutoTopicCreation())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// Find the end of the reply partition before the request is sent, or its reply may be missed.
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, replyTopic)
	if err != nil {
		return nil, err
	}
	end, found := ends.Lookup(replyTopic, partition)
	if !found || end.Err != nil {
		return nil, fmt.Errorf("topic %s cannot be read: %w", replyTopic, end.Err)
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{replyTopic: {partition: kgo.NewOffset().At(end.Offset)}})

	call := make([]byte, 16)
	rand.Read(call)
	value, err := msgpack.Marshal(request{1, model, "embed", texts, map[string]bool{"normalize": true}})
	if err != nil {
		return nil, err
	}
	record := &kgo.Record{Topic: "penstock.requests." + model, Value: value, Headers: []kgo.RecordHeader{
		{Key: "kafka_correlationId", Value: call},
		{Key: "kafka_replyTopic", Value: []byte(replyTopic)},
		{Key: "kafka_replyPartition", Value: binary.BigEndian.AppendUint32(nil, partition)},
		{Key: "penstock-deadline-ms", Value: strconv.AppendInt(nil, time.Now().Add(timeout).UnixMilli(), 10)},
	}}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return nil, err
	}
	answer, err := receive(ctx, client, call)
	if err != nil {
		return nil, err
	}
	return vectors(answer)
}

// receive returns the value of the reply with the correlation id `call`; other clients' replies are passed over.
func receive(ctx context.Context, client *kgo.Client, call []byte) ([]byte, error) {
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, record := range fetches.Records() {
			for _, header := range record.Headers {
				if header.Key == "kafka_correlationId" && bytes.Equal(header.Value, call) {
					return record.Value, nil
				}
			}
		}
	}
}

func vectors(value []byte) ([][]float32, error) {
	var answer reply
	if err := msgpack.Unmarshal(value, &answer); err != nil {
		return nil, err
	}
	if !answer.OK {
		return nil, fmt.Errorf("%s: %s", answer.Error.Code, answer.Error.Message)
	}
	rows := make([][]float32, answer.Shape[0])
	data := bytes.NewReader(answer.Data)
	for i := range rows {
		rows[i] = make([]float32, answer.Shape[1])
		if err := binary.Read(data, binary.LittleEndian, rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func dot(left, right []float32) float64 {
	sum := 0.0
	for i := range left {
		sum += float64(left[i] * right[i])
	}
	return sum
}
