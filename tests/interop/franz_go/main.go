// franz-go: see tests/interop/__init__.py for what every client program does.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const module = "github.com/twmb/franz-go"

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

type report struct {
	Client     string   `json:"client"`
	Version    string   `json:"version"`
	Codecs     []string `json:"codecs"`
	Partitions int      `json:"partitions"`
	Produced   int      `json:"produced"`
	Consumed   int      `json:"consumed"`
	Committed  int64    `json:"committed"`
	SHA256     string   `json:"sha256"`
}

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: main BOOTSTRAP TOPIC GROUP CLIENT_ID PARTITIONS")
	}
	bootstrap, topic, group, clientID := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	partitions, err := strconv.Atoi(os.Args[5])
	check(err)
	lines := readLines()
	ctx := context.Background()
	common := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID(clientID)}
	if file := os.Getenv("TLS_CA"); file != "" {
		common = append(common, kgo.DialTLSConfig(&tls.Config{RootCAs: authority(file)}))
	}
	out := report{Client: "franz-go", Version: version()}

	client, err := kgo.NewClient(common...)
	check(err)
	defer client.Close()
	admin := kadm.NewClient(client)
	_, err = admin.CreateTopic(ctx, int32(partitions), 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		check(err)
	}
	topics, err := admin.ListTopics(ctx)
	check(err)
	check(topics[topic].Err)
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
	out.Consumed = len(consumed)
	slices.Sort(consumed)
	sum := sha256.Sum256([]byte(strings.Join(consumed, "\n")))
	out.SHA256 = hex.EncodeToString(sum[:])

	offsets, err := admin.FetchOffsets(ctx, group)
	check(err)
	offsets.Each(func(offset kadm.OffsetResponse) {
		check(offset.Err)
		out.Committed += offset.At
	})
	check(json.NewEncoder(os.Stdout).Encode(out))
}

// produce sends every len(codecs)-th line from line n on, and returns how many were acknowledged.
func produce(ctx context.Context, opts []kgo.Opt, topic string, lines []string, n int) int {
	client, err := kgo.NewClient(opts...)
	check(err)
	defer client.Close()
	var records []*kgo.Record
	for ; n < len(lines); n += len(codecs) {
		key, value, _ := strings.Cut(lines[n], "\t")
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
	}
	results := client.ProduceSync(ctx, records...)
	check(results.FirstErr())
	return len(results)
}

func consume(ctx context.Context, opts []kgo.Opt, want int) []string {
	client, err := kgo.NewClient(opts...)
	check(err)
	defer client.Close()
	var consumed []string
	for len(consumed) < want {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			consumed = append(consumed, fmt.Sprintf("%s\t%s", record.Key, record.Value))
		})
	}
	check(client.CommitUncommittedOffsets(ctx))
	return consumed
}

func readLines() []string {
	data, err := io.ReadAll(os.Stdin)
	check(err)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func authority(file string) *x509.CertPool {
	pem, err := os.ReadFile(file)
	check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatalf("%s holds no certificate", file)
	}
	return pool
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	log.Fatalf("the build does not have its version of %s", module)
	return ""
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
