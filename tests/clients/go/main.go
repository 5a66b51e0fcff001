// The shared client scenario on franz-go; every command prints one JSON value.
//
//	client BOOTSTRAP create TOPIC PARTITIONS
//	client BOOTSTRAP delete TOPIC
//	client BOOTSTRAP produce TOPIC PARTITION CODEC IDEMPOTENT   records as JSON lines {"value", "timestamp_ms"} on standard input
//	client BOOTSTRAP everyday TOPIC START_MS                    the everyday scenario, one line of JSON per step
//	client BOOTSTRAP transactions TOPIC                         the transactions of test_transactions.py
//	client BOOTSTRAP groups TOPIC                               the members of test_consumer_protocol.py
//	client BOOTSTRAP moving TOPIC COUNT                         a producer and a consumer while leaders move, see moving.py
//	client BOOTSTRAP metrics TOPIC                              produces and consumes until a line on standard input
//	client BOOTSTRAP consume TOPIC PARTITION COUNT FROM         FROM: "beginning" or a timestamp in milliseconds
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Offset      int64  `json:"offset"`
	Value       string `json:"value"`
	TimestampMs int64  `json:"timestamp_ms"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return n
}

func client(options ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(os.Args[1], ",")...))...)
	check(err)
	return c
}

func produce(ctx context.Context, topic string, partition int32, codec string, idempotent bool) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20 * time.Millisecond),
	}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	}
	c := client(options...)
	defer c.Close()
	var records []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r record
		check(json.Unmarshal(lines.Bytes(), &r))
		sent := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(r.Value)}
		if r.TimestampMs != 0 {
			sent.Timestamp = time.UnixMilli(r.TimestampMs)
		}
		records = append(records, sent)
	}
	check(lines.Err())
	offsets := []int64{}
	for _, result := range c.ProduceSync(ctx, records...) {
		check(result.Err)
		offsets = append(offsets, result.Record.Offset)
	}
	check(json.NewEncoder(os.Stdout).Encode(offsets))
}

func consume(ctx context.Context, topic string, partition int32, count int, from string) {
	start := kgo.NewOffset().AtStart()
	if from != "beginning" {
		start = kgo.NewOffset().AfterMilli(number(from))
	}
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: start}}))
	defer c.Close()
	found := []record{}
	for len(found) < count {
		fetches := c.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if len(found) < count {
				found = append(found, record{r.Offset, string(r.Value), r.Timestamp.UnixMilli()})
			}
		})
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}

func main() {
	a := os.Args[2:]
	limit := time.Minute
	switch a[0] {
	case "everyday":
		limit = 4 * time.Minute
	case "moving":
		limit = 12 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch a[0] {
	case "everyday":
		(&everyday{ctx, a[1], number(a[2])}).run()
	case "transactions":
		(&transactions{ctx, a[1]}).run()
	case "groups":
		(&groups{ctx: ctx, topic: a[1]}).run()
	case "moving":
		moving(ctx, a[1], int(number(a[2])))
	case "metrics":
		metrics(ctx, a[1])
	case "create":
		c := client()
		defer c.Close()
		response, err := kadm.NewClient(c).CreateTopic(ctx, int32(number(a[2])), 1, nil, a[1])
		check(err)
		check(response.Err)
		fmt.Println("null")
	case "delete":
		c := client()
		defer c.Close()
		response, err := kadm.NewClient(c).DeleteTopic(ctx, a[1])
		check(err)
		check(response.Err)
		fmt.Println("null")
	case "produce":
		produce(ctx, a[1], int32(number(a[2])), a[3], a[4] == "true")
	case "consume":
		consume(ctx, a[1], int32(number(a[2])), int(number(a[3])), a[4])
	default:
		check(fmt.Errorf("unknown command %q", a[0]))
	}
}
