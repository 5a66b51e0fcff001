// Check testcontainers for Go on an image: go run . IMAGE
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	container, err := kafka.Run(ctx, os.Args[1], kafka.WithClusterID("kbroker-go-check-00000"))
	defer func() { _ = testcontainers.TerminateContainer(container) }()
	must(err)
	brokers, err := container.Brokers(ctx)
	must(err)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("greetings"), kgo.AllowAutoTopicCreation())
	must(err)
	defer client.Close()
	must(client.ProduceSync(ctx, &kgo.Record{Topic: "greetings", Value: []byte("hello")}).FirstErr())
	fetches := client.PollFetches(ctx)
	must(fetches.Err())
	if value := string(fetches.Records()[0].Value); value != "hello" {
		log.Panicf("expected hello, got %s", value)
	}
	fmt.Println("ok")
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}
