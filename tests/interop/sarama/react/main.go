// sarama: see tests/interop/reactions. Arguments: role, bootstrap servers, topic, client id.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
)

const wait = 15 * time.Second

type reader struct{ read chan struct{} }

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		r.read <- struct{}{}
	}
	return nil
}

func main() {
	role, brokers, topic, clientID := os.Args[1], []string{os.Args[2]}, os.Args[3], os.Args[4]
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = clientID
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	var attempt func() error
	switch role {
	case "producer":
		producer, err := sarama.NewSyncProducer(brokers, config)
		check(err)
		attempt = func() error {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("x")})
			return err
		}
	case "consumer":
		group, err := sarama.NewConsumerGroup(brokers, clientID, config)
		check(err)
		mine := reader{make(chan struct{}, 100)}
		go func() {
			for {
				if err := group.Consume(context.Background(), []string{topic}, mine); err != nil {
					time.Sleep(time.Second)
				}
			}
		}()
		attempt = func() error {
			for len(group.Errors()) > 0 {
				<-group.Errors()
			}
			select {
			case <-mine.read:
				return nil
			case err := <-group.Errors():
				return err
			}
		}
	default:
		admin, err := sarama.NewClusterAdmin(brokers, config)
		check(err)
		attempt = func() error {
			name := fmt.Sprintf("new-%d", time.Now().UnixNano())
			return admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		began, said := time.Now(), ""
		done := make(chan error, 1)
		go func() { done <- attempt() }()
		err := errors.New("nothing")
		select {
		case err = <-done:
		case <-time.After(wait):
		}
		if err != nil {
			said = err.Error()
		}
		line, _ := json.Marshal(map[string]any{
			"said": said, "heard": []string{}, "seconds": time.Since(began).Round(100 * time.Millisecond).Seconds(),
		})
		fmt.Println(string(line))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
