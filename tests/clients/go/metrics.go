package main

import (
	"bufio"
	"context"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// metrics produces and consumes, with pushes of client metrics, until a line arrives on standard input.
func metrics(ctx context.Context, topic string) {
	c := client(kgo.ClientID("franz-go"), kgo.ConsumeTopics(topic), kgo.DefaultProduceTopic(topic))
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	for ctx.Err() == nil {
		if err := c.ProduceSync(ctx, kgo.StringRecord("next")).FirstErr(); err != nil && ctx.Err() == nil {
			check(err)
		}
		c.PollFetches(ctx)
		time.Sleep(20 * time.Millisecond)
	}
}
