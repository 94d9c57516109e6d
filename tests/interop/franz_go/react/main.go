// franz-go: see tests/interop/reactions. Arguments: role, bootstrap servers, topic, client id.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const wait = 15 * time.Second

func main() {
	role, bootstrap, topic, clientID := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.ClientID(clientID)}
	if role == "consumer" {
		options = append(options, kgo.ConsumerGroup(clientID), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond))
	}
	if role == "producer" {
		options = append(options, kgo.RecordDeliveryTimeout(10*time.Second))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	admin := kadm.NewClient(client)
	attempt := func(ctx context.Context) error {
		switch role {
		case "producer":
			return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr()
		case "consumer":
			return client.PollRecords(ctx, 1).Err()
		default:
			_, err := admin.CreateTopic(ctx, 1, 1, nil, fmt.Sprintf("new-%d", time.Now().UnixNano()))
			return err
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		began, said := time.Now(), ""
		if err := attempt(ctx); err != nil {
			said = err.Error()
		}
		cancel()
		line, _ := json.Marshal(map[string]any{
			"said": said, "heard": []string{}, "seconds": time.Since(began).Round(100 * time.Millisecond).Seconds(),
		})
		fmt.Println(string(line))
	}
}
