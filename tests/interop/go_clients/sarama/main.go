// sarama: see tests/interop/__init__.py for what every client program does.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"

	"github.com/IBM/sarama"

	. "brokerside.example/interop/go_clients/client"
)

var codecs = []sarama.CompressionCodec{
	sarama.CompressionNone,
	sarama.CompressionGZIP,
	sarama.CompressionSnappy,
	sarama.CompressionLZ4,
	sarama.CompressionZSTD,
}

func main() {
	brokers, topic, group, clientID, partitions := Arguments()
	lines := Lines()
	out := Report{Client: "sarama"}

	admin, err := sarama.NewClusterAdmin(brokers, config(clientID))
	Check(err)
	detail := sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	if err = admin.CreateTopic(topic, &detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		Check(err)
	}
	topics, err := admin.ListTopics()
	Check(err)
	if _, found := topics[topic]; !found {
		log.Fatalf("%s is not listed", topic)
	}
	described, err := admin.DescribeTopics([]string{topic})
	Check(err)
	out.Partitions = len(described[0].Partitions)

	for n, codec := range codecs {
		out.Codecs = append(out.Codecs, codec.String())
		out.Produced += produce(brokers, clientID, topic, lines, n)
	}
	consumed := consume(brokers, clientID, topic, group, len(lines))
	offsets, err := admin.ListConsumerGroupOffsets(group, nil)
	Check(err)
	for _, block := range offsets.Blocks[topic] {
		out.Committed += block.Offset
	}
	Check(admin.Close())
	out.Print("github.com/IBM/sarama", consumed)
}

// config is sarama's own default, down to the protocol versions it speaks, but for what the test is about.
func config(clientID string) *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Net.TLS.Config = TLS()
	config.Net.TLS.Enable = config.Net.TLS.Config != nil
	return config
}

// produce sends every len(codecs)-th line from line n on, compressed by codec n, and returns how many were acknowledged.
func produce(brokers []string, clientID, topic string, lines []string, n int) int {
	config := config(clientID)
	config.Producer.Compression = codecs[n]
	producer, err := sarama.NewSyncProducer(brokers, config)
	Check(err)
	var messages []*sarama.ProducerMessage
	for ; n < len(lines); n += len(codecs) {
		key, value, _ := strings.Cut(lines[n], "\t")
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		})
	}
	Check(producer.SendMessages(messages))
	Check(producer.Close())
	return len(messages)
}

func consume(brokers []string, clientID, topic, group string, want int) []string {
	members, err := sarama.NewConsumerGroup(brokers, group, config(clientID))
	Check(err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	reader := &reader{want: want, stop: stop}
	for ctx.Err() == nil {
		Check(members.Consume(ctx, []string{topic}, reader))
	}
	Check(members.Close())
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
