// The everyday scenario on franz-go, with one line of JSON per step; everyday.py describes the steps and their results.
//
//	client BOOTSTRAP everyday TOPIC START_MS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordCount     = 10
	groupPartitions = 4
	perPhase        = 10
	times           = 50
)

type facts map[string]any

type everyday struct {
	ctx     context.Context
	topic   string
	startMs int64
}

func (e *everyday) names() []string { return []string{e.topic, e.topic + "-time", e.topic + "-group"} }

func (e *everyday) admin(act func(*kadm.Client) error) error {
	c := client()
	defer c.Close()
	return act(kadm.NewClient(c))
}

func version() (facts, error) {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == "github.com/twmb/franz-go" {
			return facts{"version": strings.TrimPrefix(dependency.Version, "v")}, nil
		}
	}
	return nil, fmt.Errorf("franz-go is not among the dependencies")
}

func (e *everyday) create() (facts, error) {
	return facts{"topics": e.names()}, e.admin(func(a *kadm.Client) error {
		for i, partitions := range []int32{6, 1, groupPartitions} {
			if _, err := a.CreateTopic(e.ctx, partitions, 1, nil, e.names()[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *everyday) send(records []*kgo.Record, options ...kgo.Opt) (facts, error) {
	c := client(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20*time.Millisecond))...)
	defer c.Close()
	offsets := []int64{}
	for _, result := range c.ProduceSync(e.ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		offsets = append(offsets, result.Record.Offset)
	}
	return facts{"offsets": offsets}, nil
}

var plain = []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())}

func compressed(codec kgo.CompressionCodec) []kgo.Opt {
	return append([]kgo.Opt{kgo.ProducerBatchCompression(codec)}, plain...)
}

func (e *everyday) compressible(note string, partition int32) []*kgo.Record {
	var records []*kgo.Record
	for n := range recordCount {
		value := fmt.Sprintf("%s %d ", note, n) + strings.Repeat("abc ", 30)
		records = append(records, &kgo.Record{Topic: e.topic, Partition: partition, Value: []byte(value)})
	}
	return records
}

func (e *everyday) read() (facts, error) {
	offsets := map[int32]kgo.Offset{}
	for partition := range int32(6) {
		offsets[partition] = kgo.NewOffset().AtStart()
	}
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{e.topic: offsets}))
	defer c.Close()
	values, count := map[int32][]string{}, 0
	for count < 6*recordCount {
		fetches := c.PollFetches(e.ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			values[r.Partition] = append(values[r.Partition], string(r.Value))
			count++
		})
	}
	return facts{"values": values}, nil
}

// readings has the records that the members have read and committed, in order.
type readings struct {
	sync.Mutex
	reads  [][]any
	failed error
}

func (r *readings) fail(err error) {
	r.Lock()
	defer r.Unlock()
	r.failed = err
}

func (r *readings) state() (int, error) {
	r.Lock()
	defer r.Unlock()
	return len(r.reads), r.failed
}

type member struct {
	sync.Mutex
	partitions []int32
	leave      context.CancelFunc
	left       chan struct{}
}

func (m *member) assigned() []int32 {
	m.Lock()
	defer m.Unlock()
	return slices.Sorted(slices.Values(m.partitions))
}

func (e *everyday) join(name, topic string, all *readings) *member {
	ctx, leave := context.WithCancel(e.ctx)
	m := &member{leave: leave, left: make(chan struct{})}
	gone := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		m.Lock()
		defer m.Unlock()
		m.partitions = slices.DeleteFunc(m.partitions, func(p int32) bool { return slices.Contains(lost[topic], p) })
	}
	c := client(
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			m.Lock()
			defer m.Unlock()
			m.partitions = append(m.partitions, added[topic]...)
		}),
		kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
	)
	go func() {
		defer close(m.left)
		defer c.Close()
		for ctx.Err() == nil {
			fetches := c.PollFetches(ctx)
			if ctx.Err() != nil {
				return
			}
			if err := fetches.Err(); err != nil {
				all.fail(err)
				return
			}
			found := fetches.Records()
			if len(found) == 0 {
				continue
			}
			if err := c.CommitRecords(e.ctx, found...); err != nil {
				all.fail(err)
				return
			}
			all.Lock()
			for _, r := range found {
				all.reads = append(all.reads, []any{name, r.Partition, r.Offset, string(r.Value)})
			}
			all.Unlock()
		}
	}()
	return m
}

func (e *everyday) group() (facts, error) {
	topic, all, members := e.topic+"-group", &readings{}, map[string]*member{}
	defer func() {
		for _, m := range members {
			m.leave()
			<-m.left
		}
	}()
	held := []map[string][]int32{}
	until := func(what string, condition func() bool) error {
		for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(50 * time.Millisecond) {
			count, err := all.state()
			if err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: %d records read", what, count)
			}
		}
		return nil
	}
	phase := func(number int) error {
		err := until("a share for each member", func() bool {
			for _, m := range members {
				if len(m.assigned()) != groupPartitions/len(members) {
					return false
				}
			}
			return true
		})
		if err != nil {
			return err
		}
		shares := map[string][]int32{}
		for name, m := range members {
			shares[name] = m.assigned()
		}
		held = append(held, shares)
		var records []*kgo.Record
		for n := number * perPhase; n < (number+1)*perPhase; n++ {
			for p := range int32(groupPartitions) {
				records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d-%d", p, n)})
			}
		}
		if _, err := e.send(records, plain...); err != nil {
			return err
		}
		return until("all is read", func() bool {
			count, _ := all.state()
			return count >= groupPartitions*perPhase*(number+1)
		})
	}
	members["a"] = e.join("a", topic, all)
	if err := phase(0); err != nil {
		return nil, err
	}
	members["b"] = e.join("b", topic, all)
	if err := phase(1); err != nil {
		return nil, err
	}
	a := members["a"]
	delete(members, "a")
	a.leave()
	<-a.left
	if err := phase(2); err != nil {
		return nil, err
	}
	return facts{"reads": all.reads, "held": held}, nil
}

func (e *everyday) byTime() (facts, error) {
	topic := e.topic + "-time"
	var records []*kgo.Record
	for n := range times {
		at := time.UnixMilli(e.startMs + int64(10*n))
		records = append(records, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "record %d", n), Timestamp: at})
	}
	if _, err := e.send(records, compressed(kgo.GzipCompression())...); err != nil {
		return nil, err
	}
	start := kgo.NewOffset().AfterMilli(e.startMs + 171)
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}))
	defer c.Close()
	var found []*kgo.Record
	for len(found) < times-18 {
		fetches := c.PollFetches(e.ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		found = append(found, fetches.Records()...)
	}
	var values []string
	for _, r := range found {
		values = append(values, string(r.Value))
	}
	return facts{"offset": found[0].Offset, "values": values}, nil
}

func (e *everyday) list() (facts, error) {
	found := []string{}
	err := e.admin(func(a *kadm.Client) error {
		topics, err := a.ListTopics(e.ctx)
		for _, name := range e.names() {
			if topics.Has(name) {
				found = append(found, name)
			}
		}
		return err
	})
	return facts{"topics": found}, err
}

func (e *everyday) describe() (facts, error) {
	leaders := []int32{}
	err := e.admin(func(a *kadm.Client) error {
		topics, err := a.ListTopics(e.ctx, e.topic)
		for _, partition := range topics[e.topic].Partitions.Sorted() {
			leaders = append(leaders, partition.Leader)
		}
		return err
	})
	return facts{"leaders": leaders}, err
}

func (e *everyday) retentionMs(a *kadm.Client) (string, error) {
	found, err := a.DescribeTopicConfigs(e.ctx, e.topic)
	if err != nil {
		return "", err
	}
	topic, err := found.On(e.topic, nil)
	if err != nil {
		return "", err
	}
	for _, config := range topic.Configs {
		if config.Key == "retention.ms" {
			return config.MaybeValue(), topic.Err
		}
	}
	return "", fmt.Errorf("no retention.ms: %v", topic.Err)
}

func (e *everyday) configs() (facts, error) {
	said := facts{}
	return said, e.admin(func(a *kadm.Client) error {
		before, err := e.retentionMs(a)
		if err != nil {
			return err
		}
		change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("123456789")}}
		done, err := a.AlterTopicConfigs(e.ctx, change, e.topic)
		if err != nil {
			return err
		}
		if _, err := done.On(e.topic, func(r *kadm.AlterConfigsResponse) error { return r.Err }); err != nil {
			return err
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			after, err := e.retentionMs(a)
			said["before"], said["after"] = before, after
			if err != nil || after != before || time.Now().After(deadline) {
				return err
			}
		}
	})
}

func (e *everyday) delete() (facts, error) {
	name := e.topic + "-time"
	err := e.admin(func(a *kadm.Client) error {
		done, err := a.DeleteTopic(e.ctx, name)
		if err != nil {
			return err
		}
		return done.Err
	})
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		found, err := e.list()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(found["topics"].([]string), name) {
			return facts{"left": []string{}}, nil
		}
		if time.Now().After(deadline) {
			return facts{"left": []string{name}}, nil
		}
	}
}

func (e *everyday) run() {
	codec := func(name string, partition int32, c kgo.CompressionCodec) func() (facts, error) {
		return func() (facts, error) { return e.send(e.compressible(name, partition), compressed(c)...) }
	}
	steps := []struct {
		name string
		act  func() (facts, error)
	}{
		{"version", version},
		{"create", e.create},
		{"none", codec("none", 0, kgo.NoCompression())},
		{"gzip", codec("gzip", 1, kgo.GzipCompression())},
		{"snappy", codec("snappy", 2, kgo.SnappyCompression())},
		{"lz4", codec("lz4", 3, kgo.Lz4Compression())},
		{"zstd", codec("zstd", 4, kgo.ZstdCompression())},
		{"idempotent", func() (facts, error) {
			return e.send(e.compressible("idempotent", 5), kgo.ProducerBatchCompression(kgo.NoCompression()))
		}},
		{"read", e.read},
		{"group", e.group},
		{"by time", e.byTime},
		{"list", e.list},
		{"describe", e.describe},
		{"configs", e.configs},
		{"delete", e.delete},
	}
	for _, step := range steps {
		said, err := step.act()
		if err != nil {
			said = facts{"error": err.Error()}
		}
		said["step"] = step.name
		check(json.NewEncoder(os.Stdout).Encode(said))
	}
}
