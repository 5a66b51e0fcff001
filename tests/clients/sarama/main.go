// A producer and a member of a group while leaders and coordinators move, on sarama: see moving.py.
//
//	program BOOTSTRAP TOPIC COUNT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 100, 50*time.Millisecond
	c.Net.MaxOpenRequests = 1 // as its idempotent producer requires
	c.Producer.Idempotent, c.Producer.RequiredAcks = true, sarama.WaitForAll
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 100, 50*time.Millisecond
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	return c
}

// member records the values of the records that it reads until it has count of them.
type member struct {
	lock  sync.Mutex
	read  map[string]bool
	count int
	end   context.CancelFunc
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		if len(m.read) == 0 {
			fmt.Println("ready")
		}
		m.read[string(message.Value)] = true
		if len(m.read) == m.count {
			m.end()
		}
		m.lock.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func consume(addresses []string, topic string, count int) int {
	ctx, end := context.WithCancel(context.Background())
	m := &member{read: map[string]bool{}, count: count, end: end}
	group, err := sarama.NewConsumerGroup(addresses, topic, config())
	check(err)
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, m); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(50 * time.Millisecond)
		}
	}
	if err := group.Close(); err != nil { // leaving fails after a move, because sarama does not repeat FindCoordinator
		fmt.Fprintln(os.Stderr, err)
	}
	return len(m.read)
}

func main() {
	addresses, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	read := make(chan int)
	go func() { read <- consume(addresses, topic, count) }()
	producer, err := sarama.NewAsyncProducer(addresses, config())
	check(err)
	acked, failed := 0, []string{}
	results := make(chan struct{})
	go func() {
		defer close(results)
		for acked+len(failed) < count {
			select {
			case <-producer.Successes():
				acked++
			case failure := <-producer.Errors():
				failed = append(failed, failure.Error())
			}
		}
	}()
	for n := range count {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Partition: int32(n % 3), Value: sarama.StringEncoder(strconv.Itoa(n)),
		}
		time.Sleep(8 * time.Millisecond)
	}
	<-results
	check(producer.Close())
	line, err := json.Marshal(map[string]any{"acked": acked, "failed": failed, "read": <-read})
	check(err)
	fmt.Println(string(line))
}
