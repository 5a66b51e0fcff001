// Package kfake has the names of franz-go's kfake that its copies of Kafka's tests use, and starts this project's broker.
//
// KBROKER_SERVE is the command of a broker without settings, one word per line; KBROKER_TEST_BOOTSTRAP is the address
// of a running broker.
package kfake

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var ready = regexp.MustCompile(`127\.0\.0\.1:[1-9]\d*`)

const token = "kfake"

type topic struct {
	partitions int32
	name       string
}

type settings struct {
	topics  []topic
	brokers int
	broker  map[string]string
}

// Opt is an option of NewCluster.
type Opt func(*settings)

// NumBrokers sets the number of nodes, whose ids begin at 0; several nodes run in memory without a control port.
func NumBrokers(count int) Opt { return func(s *settings) { s.brokers = count } }

// SeedTopics creates topics before NewCluster returns.
func SeedTopics(partitions int32, names ...string) Opt {
	return func(s *settings) {
		for _, name := range names {
			s.topics = append(s.topics, topic{partitions, name})
		}
	}
}

// BrokerConfigs sets configs of the broker. kfake has one maximum size for groups of both protocols, Kafka has two.
func BrokerConfigs(configs map[string]string) Opt {
	return func(s *settings) {
		for name, value := range configs {
			s.broker[name] = value
			if name == "group.max.size" {
				s.broker["group.consumer.max.size"] = value
			}
		}
	}
}

// Cluster is a process with one broker, or with several nodes.
type Cluster struct {
	address string
	control string // address of its control port
	folder  string
	process *exec.Cmd
	admin   *kadm.Client
}

// NewCluster starts a broker and creates the topics.
func NewCluster(opts ...Opt) (*Cluster, error) {
	s := settings{brokers: 1, broker: map[string]string{
		"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100",
		"group.consumer.min.session.timeout.ms": "100", "group.consumer.min.heartbeat.interval.ms": "10",
	}}
	for _, opt := range opts {
		opt(&s)
	}
	if s.brokers > 1 {
		s.broker["kbroker.brokers"], s.broker["kbroker.in.memory"] = strconv.Itoa(s.brokers), "true"
		s.broker["node.id"] = "0"
	} else {
		s.broker["kbroker.control.listener"], s.broker["kbroker.control.token"] = "127.0.0.1:0", token
	}
	c := &Cluster{address: os.Getenv("KBROKER_TEST_BOOTSTRAP")}
	if c.address == "" {
		if err := c.start(s); err != nil {
			return nil, err
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.address))
	if err != nil {
		return nil, err
	}
	c.admin = kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, t := range s.topics {
		if _, err := c.admin.CreateTopic(ctx, t.partitions, 1, nil, t.name); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) start(s settings) error {
	folder, err := os.MkdirTemp("", "kbroker-")
	if err != nil {
		return err
	}
	s.broker["listeners"] = "PLAINTEXT://127.0.0.1:0"
	if s.brokers == 1 {
		s.broker["log.dirs"] = folder
	}
	words := strings.Split(os.Getenv("KBROKER_SERVE"), "\n")
	for name, value := range s.broker {
		words = append(words, "--set", name+"="+value)
	}
	c.folder, c.process = folder, exec.Command(words[0], words[1:]...)
	output, err := c.process.StdoutPipe()
	if err != nil {
		return err
	}
	c.process.Stderr = c.process.Stdout
	if err := c.process.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(output)
	var said strings.Builder
	for c.address == "" || s.brokers == 1 && c.control == "" {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if c.address == "" {
			c.address = ready.FindString(line)
		} else {
			c.control = ready.FindString(line)
		}
		if err != nil {
			c.Close()
			return fmt.Errorf("the broker ended: %w\n%s", err, said.String())
		}
	}
	go io.Copy(io.Discard, lines)
	return nil
}

// ListenAddrs returns the address of the broker.
func (c *Cluster) ListenAddrs() []string { return []string{c.address} }

// Close ends the broker and deletes its data.
func (c *Cluster) Close() {
	if c.admin != nil {
		c.admin.Close()
	}
	if c.process != nil {
		c.process.Process.Signal(syscall.SIGTERM)
		c.process.Wait()
		os.RemoveAll(c.folder)
	}
}

// GroupCommit is one committed offset.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	At          time.Time
}

// GroupInfo is the part of a group that tests examine.
type GroupInfo struct {
	Group   string
	State   string
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

// GroupMember is a member of either protocol.
type GroupMember struct {
	MemberID string
	assigned int
}

// NumAssigned returns the number of the member's partitions.
func (m GroupMember) NumAssigned() int { return m.assigned }

// NumAssigned returns the number of partitions of all members.
func (g *GroupInfo) NumAssigned() int {
	assigned := 0
	for _, member := range g.Members {
		assigned += member.assigned
	}
	return assigned
}

// described returns a group of either protocol, or the error for a group that does not exist.
func (c *Cluster) described(ctx context.Context, group string) (*GroupInfo, error) {
	info := &GroupInfo{Group: group, Commits: make(map[string]map[int32]GroupCommit)}
	modern, err := c.admin.DescribeConsumerGroups(ctx, group)
	if err == nil {
		err = modern[group].Err
	}
	if err == nil {
		info.State = modern[group].State
		for _, member := range modern[group].Members {
			one := GroupMember{MemberID: member.MemberID}
			for _, partitions := range member.Assignment {
				one.assigned += len(partitions)
			}
			info.Members = append(info.Members, one)
		}
		return info, nil
	}
	if !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, err
	}
	classic, err := c.admin.DescribeGroups(ctx, group)
	if err != nil {
		return nil, err
	}
	if classic[group].State == "Dead" {
		return nil, kerr.GroupIDNotFound
	}
	info.State = classic[group].State
	for _, member := range classic[group].Members {
		one := GroupMember{MemberID: member.MemberID}
		if assignment, ok := member.Assigned.AsConsumer(); ok {
			for _, topic := range assignment.Topics {
				one.assigned += len(topic.Partitions)
			}
		}
		info.Members = append(info.Members, one)
	}
	return info, nil
}

// GroupInfo returns a group as the broker describes it, nil if it does not exist.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := c.described(ctx, group)
	if err != nil {
		return nil
	}
	offsets, err := c.admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		if info.Commits[o.Topic] == nil {
			info.Commits[o.Topic] = make(map[int32]GroupCommit)
		}
		info.Commits[o.Topic][o.Partition] = GroupCommit{Offset: o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
	})
	return info
}

// WaitGroupStable waits until a group is stable with a number of members.
func (c *Cluster) WaitGroupStable(ctx context.Context, group string, members int) (*GroupInfo, error) {
	for {
		if info := c.GroupInfo(group); info != nil && info.State == "Stable" && len(info.Members) == members {
			return info, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Fault is an error for the next request of some APIs. The broker does not examine requests, so When is ignored.
type Fault struct {
	Keys []kmsg.Key
	Err  error
	When func(kmsg.Request) bool
}

// Fault adds a fault to the broker, over its control port.
func (c *Cluster) Fault(f Fault) {
	keys := make([]int16, 0, len(f.Keys))
	for _, key := range f.Keys {
		keys = append(keys, int16(key))
	}
	var failure *kerr.Error
	if !errors.As(f.Err, &failure) {
		panic("a fault needs an error of Kafka")
	}
	body, err := json.Marshal(map[string]any{"rules": []any{map[string]any{"keys": keys, "error": failure.Code}}})
	if err != nil {
		panic(err)
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+c.control+"/faults", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(response.Body)
		panic(string(said))
	}
}

// ControlKey fails; the tests that need it are skipped.
func (c *Cluster) ControlKey(int16, func(kmsg.Request) (kmsg.Response, error, bool)) {
	panic("only kfake itself shows requests to a test")
}
