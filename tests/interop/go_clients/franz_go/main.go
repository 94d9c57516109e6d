// franz-go: see tests/interop/__init__.py for what every client program does.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	. "brokerside.example/interop/go_clients/client"
)

var codecs = []struct {
	name  string
	codec kgo.CompressionCodec
}{
	{"none", kgo.NoCompression()},
	{"gzip", kgo.GzipCompression()},
	{"snappy", kgo.SnappyCompression()},
	{"lz4", kgo.Lz4Compression()},
	{"zstd", kgo.ZstdCompression()},
}

func main() {
	brokers, topic, group, clientID, partitions := Arguments()
	lines := Lines()
	ctx := context.Background()
	common := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ClientID(clientID)}
	if config := TLS(); config != nil {
		common = append(common, kgo.DialTLSConfig(config))
	}
	out := Report{Client: "franz-go"}

	client, err := kgo.NewClient(common...)
	Check(err)
	defer client.Close()
	admin := kadm.NewClient(client)
	_, err = admin.CreateTopic(ctx, partitions, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		Check(err)
	}
	topics, err := admin.ListTopics(ctx)
	Check(err)
	Check(topics[topic].Err)
	out.Partitions = len(topics[topic].Partitions)

	for n, codec := range codecs {
		out.Codecs = append(out.Codecs, codec.name)
		out.Produced += produce(ctx, append(common, kgo.ProducerBatchCompression(codec.codec)), topic, lines, n)
	}
	consumed := consume(ctx, append(common,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	), len(lines))
	offsets, err := admin.FetchOffsets(ctx, group)
	Check(err)
	offsets.Each(func(offset kadm.OffsetResponse) {
		Check(offset.Err)
		out.Committed += offset.At
	})
	out.Print("github.com/twmb/franz-go", consumed)
}

// produce sends every len(codecs)-th line from line n on, and returns how many were acknowledged.
func produce(ctx context.Context, opts []kgo.Opt, topic string, lines []string, n int) int {
	client, err := kgo.NewClient(opts...)
	Check(err)
	defer client.Close()
	var records []*kgo.Record
	for ; n < len(lines); n += len(codecs) {
		key, value, _ := strings.Cut(lines[n], "\t")
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
	}
	results := client.ProduceSync(ctx, records...)
	Check(results.FirstErr())
	return len(results)
}

func consume(ctx context.Context, opts []kgo.Opt, want int) []string {
	client, err := kgo.NewClient(opts...)
	Check(err)
	defer client.Close()
	var consumed []string
	for len(consumed) < want {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			Check(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			consumed = append(consumed, fmt.Sprintf("%s\t%s", record.Key, record.Value))
		})
	}
	Check(client.CommitUncommittedOffsets(ctx))
	return consumed
}
