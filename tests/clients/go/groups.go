package main

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// groups runs members of the consumer protocol (KIP-848) on TOPIC, which has four partitions, and prints a line per step.
type groups struct {
	ctx   context.Context
	topic string
	lock  sync.Mutex
	read  map[string]int
}

// sharer polls and commits in its own goroutine.
type sharer struct {
	client *kgo.Client
	has    map[string]map[int32]bool
	ended  chan struct{}
}

func (g *groups) join(group string, byPattern bool, more ...kgo.Opt) *sharer {
	m := &sharer{has: map[string]map[int32]bool{}, ended: make(chan struct{})}
	change := func(is bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			g.lock.Lock()
			defer g.lock.Unlock()
			for topic, partitions := range places {
				if m.has[topic] == nil {
					m.has[topic] = map[int32]bool{}
				}
				for _, p := range partitions {
					if is {
						m.has[topic][p] = true
					} else {
						delete(m.has[topic], p)
					}
				}
			}
		}
	}
	options := append([]kgo.Opt{
		kgo.ServerSideBalancer(), kgo.ConsumerGroup(group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
	}, more...)
	if byPattern {
		pattern := regexp.QuoteMeta(g.topic[:len(g.topic)-2]) + ".+"
		options = append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics(pattern))
	} else {
		options = append(options, kgo.ConsumeTopics(g.topic))
	}
	m.client = client(options...)
	go func() {
		defer close(m.ended)
		for {
			fetches := m.client.PollFetches(g.ctx)
			if fetches.IsClientClosed() || g.ctx.Err() != nil {
				return
			}
			fetches.EachRecord(func(r *kgo.Record) {
				g.lock.Lock()
				g.read[string(r.Value)]++
				g.lock.Unlock()
			})
			if !fetches.Empty() {
				check(m.client.CommitUncommittedOffsets(g.ctx))
			}
		}
	}()
	return m
}

func (m *sharer) leave() {
	m.client.Close()
	<-m.ended
}

func (g *groups) step(name string, condition func() bool) {
	for end := time.Now().Add(40 * time.Second); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			check(fmt.Errorf("not reached: %s", name))
		}
	}
	fmt.Println(name)
}

// share returns whether these members have the four partitions, each once.
func (g *groups) share(members ...*sharer) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	all, sum := map[int32]bool{}, 0
	for _, m := range members {
		if len(m.has[g.topic]) == 0 {
			return false
		}
		for p := range m.has[g.topic] {
			all[p] = true
			sum++
		}
	}
	return len(all) == 4 && sum == 4
}

func (g *groups) send(count int) {
	c := client(kgo.AllowAutoTopicCreation())
	defer c.Close()
	for number := range count {
		r := &kgo.Record{Topic: g.topic, Value: fmt.Appendf(nil, "%d %d", time.Now().UnixNano(), number)}
		check(c.ProduceSync(g.ctx, r).FirstErr())
	}
}

func (g *groups) isRead(count int) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	for _, times := range g.read {
		if times != 1 {
			return false
		}
	}
	return len(g.read) == count
}

func (g *groups) run() {
	g.read = map[string]int{}
	g.send(12)
	one := g.join(g.topic+"-group", false)
	g.step("one has all", func() bool { return g.share(one) && g.isRead(12) })
	two := g.join(g.topic+"-group", false)
	g.step("two share", func() bool { return g.share(one, two) })
	g.send(12)
	g.step("each record is read once", func() bool { return g.isRead(24) })
	one.leave()
	g.step("one has left", func() bool { return g.share(two) })
	two.leave()
	static := g.join(g.topic+"-group", false, kgo.InstanceID("static"))
	g.step("a static member", func() bool { return g.share(static) })
	static.leave()
	pattern := g.join(g.topic+"-pattern", true)
	g.step("a pattern", func() bool { return g.share(pattern) })
	pattern.leave()
}
