// A producer and a member of a group while leaders and coordinators move, on franz-go: see moving.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func moving(ctx context.Context, topic string, count int) {
	var lock sync.Mutex
	acked, failed := 0, []string{}
	done := make(chan int)
	go func() {
		c := client(
			kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.AutoCommitInterval(100*time.Millisecond),
		)
		defer c.Close()
		read := map[string]bool{}
		for len(read) < count {
			c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				if len(read) == 0 {
					fmt.Println("ready")
				}
				read[string(r.Value)] = true
			})
		}
		done <- len(read)
	}()
	c := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	for n := range count {
		sent := &kgo.Record{Topic: topic, Partition: int32(n % 3), Value: []byte(strconv.Itoa(n))}
		c.Produce(ctx, sent, func(_ *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				failed = append(failed, err.Error())
			} else {
				acked++
			}
		})
		time.Sleep(8 * time.Millisecond)
	}
	check(c.Flush(ctx))
	read := <-done
	lock.Lock()
	defer lock.Unlock()
	line, err := json.Marshal(map[string]any{"acked": acked, "failed": failed, "read": read})
	check(err)
	fmt.Println(string(line))
}
