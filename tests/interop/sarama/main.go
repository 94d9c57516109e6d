// sarama: see tests/interop/__init__.py for what every client program does.
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
	"sync"

	"github.com/IBM/sarama"
)

const module = "github.com/IBM/sarama"

var codecs = []sarama.CompressionCodec{
	sarama.CompressionNone,
	sarama.CompressionGZIP,
	sarama.CompressionSnappy,
	sarama.CompressionLZ4,
	sarama.CompressionZSTD,
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
	topic, group, clientID := os.Args[2], os.Args[3], os.Args[4]
	brokers := strings.Split(os.Args[1], ",")
	partitions, err := strconv.ParseInt(os.Args[5], 10, 32)
	check(err)
	lines := readLines()
	out := report{Client: "sarama", Version: version()}

	admin, err := sarama.NewClusterAdmin(brokers, config(clientID))
	check(err)
	detail := sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}
	if err = admin.CreateTopic(topic, &detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		check(err)
	}
	topics, err := admin.ListTopics()
	check(err)
	if _, found := topics[topic]; !found {
		log.Fatalf("%s is not listed", topic)
	}
	described, err := admin.DescribeTopics([]string{topic})
	check(err)
	out.Partitions = len(described[0].Partitions)

	for n, codec := range codecs {
		out.Codecs = append(out.Codecs, codec.String())
		out.Produced += produce(brokers, clientID, topic, lines, n)
	}
	consumed := consume(brokers, clientID, topic, group, len(lines))
	out.Consumed = len(consumed)
	slices.Sort(consumed)
	sum := sha256.Sum256([]byte(strings.Join(consumed, "\n")))
	out.SHA256 = hex.EncodeToString(sum[:])

	offsets, err := admin.ListConsumerGroupOffsets(group, nil)
	check(err)
	for _, block := range offsets.Blocks[topic] {
		out.Committed += block.Offset
	}
	check(admin.Close())
	check(json.NewEncoder(os.Stdout).Encode(out))
}

// config is sarama's own default, down to the protocol versions it speaks, but for what the test is about.
func config(clientID string) *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	if file := os.Getenv("TLS_CA"); file != "" {
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = &tls.Config{RootCAs: authority(file)}
	}
	return config
}

// produce sends every len(codecs)-th line from line n on, compressed by codec n, and returns how many were acknowledged.
func produce(brokers []string, clientID, topic string, lines []string, n int) int {
	config := config(clientID)
	config.Producer.Compression = codecs[n]
	producer, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	var messages []*sarama.ProducerMessage
	for ; n < len(lines); n += len(codecs) {
		key, value, _ := strings.Cut(lines[n], "\t")
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		})
	}
	check(producer.SendMessages(messages))
	check(producer.Close())
	return len(messages)
}

func consume(brokers []string, clientID, topic, group string, want int) []string {
	members, err := sarama.NewConsumerGroup(brokers, group, config(clientID))
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	reader := &reader{want: want, stop: stop}
	for ctx.Err() == nil {
		check(members.Consume(ctx, []string{topic}, reader))
	}
	check(members.Close())
	return reader.consumed
}

// reader takes the records of all partitions and stops after want of them.
type reader struct {
	mutex    sync.Mutex
	consumed []string
	want     int
	stop     context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			r.take(message)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (r *reader) take(message *sarama.ConsumerMessage) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.consumed = append(r.consumed, fmt.Sprintf("%s\t%s", message.Key, message.Value))
	if len(r.consumed) == r.want {
		r.stop()
	}
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
