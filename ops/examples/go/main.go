// Embeds texts and prints the similarity of each to the first: embed SERVERS MODEL TEXT...
//
// The variable TASK may be embed_sparse or embed_tokens, for models that have such embeddings.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
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
	Options map[string]bool `msgpack:"opts,omitempty"`
}

// Numbers are little-endian: uint32 and float32.
type matrix struct {
	Lens  []byte `msgpack:"lens"`  // vectors of each text
	Shape []int  `msgpack:"shape"` // vectors, dimensions
	Data  []byte `msgpack:"data"`  // vector after vector
}

type sparse struct {
	Lens    []byte `msgpack:"lens"` // ids of each text
	IDs     []byte `msgpack:"ids"`
	Weights []byte `msgpack:"weights"`
}

type reply struct {
	OK     bool    `msgpack:"ok"`
	Shape  []int   `msgpack:"shape"` // embed: texts, dimensions
	Data   []byte  `msgpack:"data"`
	Tokens *matrix `msgpack:"token_vectors"`
	Sparse *sparse `msgpack:"sparse"`
	Error  struct {
		Code    string `msgpack:"code"`
		Message string `msgpack:"message"`
	} `msgpack:"error"`
}

func main() {
	texts := os.Args[3:]
	answer, err := embed(os.Args[1], os.Args[2], texts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i, similarity := range similarities(answer) {
		fmt.Printf("%.3f  %s\n", similarity, texts[i])
	}
}

func embed(servers, model string, texts []string) (*reply, error) {
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
	asked := request{1, model, "embed", texts, map[string]bool{"normalize": true}}
	if task := os.Getenv("TASK"); task != "" {
		asked.Task, asked.Options = task, nil
	}
	value, err := msgpack.Marshal(asked)
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
	return decode(answer)
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

func decode(value []byte) (*reply, error) {
	var answer reply
	if err := msgpack.Unmarshal(value, &answer); err != nil {
		return nil, err
	}
	if !answer.OK {
		return nil, fmt.Errorf("%s: %s", answer.Error.Code, answer.Error.Message)
	}
	return &answer, nil
}

// similarities returns that of each text to the first: the dot product, or the sum of the best one of each token.
func similarities(answer *reply) []float64 {
	var found []float64
	if answer.Sparse != nil {
		rows := answer.Sparse.rows()
		for _, row := range rows {
			sum := 0.0
			for id, weight := range rows[0] {
				sum += weight * row[id]
			}
			found = append(found, sum)
		}
		return found
	}
	rows := answer.vectors()
	for _, row := range rows {
		sum := 0.0
		for _, left := range rows[0] {
			best := math.Inf(-1)
			for _, right := range row {
				best = max(best, dot(left, right))
			}
			sum += best
		}
		found = append(found, sum)
	}
	return found
}

// rows returns the weights of each text by token id.
func (table *sparse) rows() []map[uint32]float64 {
	ids, weights := uint32s(table.IDs), floats(table.Weights)
	var rows []map[uint32]float64
	for _, length := range uint32s(table.Lens) {
		row := map[uint32]float64{}
		for i := range length {
			row[ids[i]] = float64(weights[i])
		}
		ids, weights = ids[length:], weights[length:]
		rows = append(rows, row)
	}
	return rows
}

// vectors returns those of each text: one, or one for each token.
func (answer *reply) vectors() [][][]float32 {
	table := answer.Tokens
	if table == nil {
		ones := bytes.Repeat([]byte{1, 0, 0, 0}, answer.Shape[0])
		table = &matrix{ones, answer.Shape, answer.Data}
	}
	numbers, dim := floats(table.Data), table.Shape[1]
	var rows [][][]float32
	for _, length := range uint32s(table.Lens) {
		row := make([][]float32, length)
		for i := range row {
			row[i], numbers = numbers[:dim], numbers[dim:]
		}
		rows = append(rows, row)
	}
	return rows
}

func uint32s(data []byte) []uint32 {
	numbers := make([]uint32, len(data)/4)
	for i := range numbers {
		numbers[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return numbers
}

func floats(data []byte) []float32 {
	numbers := make([]float32, len(data)/4)
	for i, bits := range uint32s(data) {
		numbers[i] = math.Float32frombits(bits)
	}
	return numbers
}

func dot(left, right []float32) float64 {
	sum := 0.0
	for i := range left {
		sum += float64(left[i]) * float64(right[i])
	}
	return sum
}
