// The transactions of test_transactions.py on franz-go, with the results as one line of JSON.
//
//	client BOOTSTRAP transactions TOPIC
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type transactions struct {
	ctx   context.Context
	topic string
}

func (t *transactions) records(topic, note string, count int) []*kgo.Record {
	var records []*kgo.Record
	for n := range count {
		records = append(records, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%s %d", note, n)})
	}
	return records
}

// copy consumes the records of TOPIC-in, and commits their offsets with records in a transaction.
func (t *transactions) copy(s *kgo.GroupTransactSession, note string, count int, end kgo.TransactionEndTry) {
	c := client()
	defer c.Close()
	check(c.ProduceSync(t.ctx, t.records(t.topic+"-in", "in", count)...).FirstErr())
	for count > 0 {
		fetches := s.PollFetches(t.ctx)
		check(fetches.Err())
		count -= fetches.NumRecords()
	}
	check(s.Begin())
	check(s.ProduceSync(t.ctx, t.records(t.topic, note, 5)...).FirstErr())
	committed, err := s.End(t.ctx, end)
	check(err)
	if committed != bool(end) {
		check(fmt.Errorf("%s: committed is %t", note, committed))
	}
}

func (t *transactions) committed() int64 {
	c := client()
	defer c.Close()
	found, err := kadm.NewClient(c).FetchOffsets(t.ctx, t.topic)
	check(err)
	offset, _ := found.Lookup(t.topic+"-in", 0)
	return offset.At
}

func (t *transactions) read() []string {
	c := client(kgo.ConsumeTopics(t.topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer c.Close()
	var found []string
	for len(found) == 0 || found[len(found)-1] != "second 4" {
		fetches := c.PollFetches(t.ctx)
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, string(r.Value)) })
	}
	return found
}

func (t *transactions) run() {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID(t.topic), kgo.ConsumerGroup(t.topic),
		kgo.ConsumeTopics(t.topic+"-in"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	check(err)
	t.copy(session, "commit", 7, kgo.TryCommit)
	t.copy(session, "abort", 2, kgo.TryAbort)
	found := facts{"offset": t.committed(), "fenced": ""}
	session.Close()
	first := client(kgo.TransactionalID(t.topic))
	check(first.BeginTransaction())
	check(first.ProduceSync(t.ctx, t.records(t.topic, "open", 5)...).FirstErr())
	second := client(kgo.TransactionalID(t.topic))
	defer second.Close()
	check(second.BeginTransaction())
	check(second.ProduceSync(t.ctx, t.records(t.topic, "second", 5)...).FirstErr())
	check(second.EndTransaction(t.ctx, kgo.TryCommit))
	if err := first.EndTransaction(t.ctx, kgo.TryCommit); err != nil {
		var code *kerr.Error
		if !errors.As(err, &code) {
			check(err)
		}
		found["fenced"] = code.Message
	}
	first.Close()
	found["read"] = t.read()
	check(json.NewEncoder(os.Stdout).Encode(found))
}
