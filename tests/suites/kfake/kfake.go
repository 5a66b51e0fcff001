// Package kfake has the names of franz-go's kfake that its copies of Kafka's tests use, and starts our broker.
//
// KBROKER_SERVE is the command of a broker without settings, a word on each line; KBROKER_TEST_BOOTSTRAP names one that runs.
package kfake

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var ready = regexp.MustCompile(`127\.0\.0\.1:[1-9]\d*`)

type topic struct {
	partitions int32
	name       string
}

type settings struct {
	topics []topic
	broker map[string]string
}

// Opt is an option of NewCluster.
type Opt func(*settings)

// NumBrokers is of no consequence: there is one.
func NumBrokers(int) Opt { return func(*settings) {} }

// SeedTopics makes topics before the cluster is given to the test.
func SeedTopics(partitions int32, names ...string) Opt {
	return func(s *settings) {
		for _, name := range names {
			s.topics = append(s.topics, topic{partitions, name})
		}
	}
}

// BrokerConfigs sets configs of the broker.
func BrokerConfigs(configs map[string]string) Opt {
	return func(s *settings) {
		for name, value := range configs {
			s.broker[name] = value
		}
	}
}

// Cluster is one broker in a process of its own.
type Cluster struct {
	address string
	folder  string
	process *exec.Cmd
	admin   *kadm.Client
}

// NewCluster starts a broker and makes the topics.
func NewCluster(opts ...Opt) (*Cluster, error) {
	s := settings{broker: map[string]string{"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}}
	for _, opt := range opts {
		opt(&s)
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
	s.broker["listeners"], s.broker["log.dirs"] = "PLAINTEXT://127.0.0.1:0", folder
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
	for c.address == "" {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		c.address = ready.FindString(line)
		if err != nil && c.address == "" {
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

// GroupInfo is what a test looks at in a group.
type GroupInfo struct {
	Group   string
	State   string
	Members []kadm.DescribedGroupMember
	Commits map[string]map[int32]GroupCommit
}

// NumAssigned counts the partitions that the members have.
func (g *GroupInfo) NumAssigned() int {
	assigned := 0
	for _, member := range g.Members {
		if assignment, ok := member.Assigned.AsConsumer(); ok {
			for _, topic := range assignment.Topics {
				assigned += len(topic.Partitions)
			}
		}
	}
	return assigned
}

// GroupInfo returns a group as the broker describes it, nil if it has none.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	described, err := c.admin.DescribeGroups(ctx, group)
	if err != nil || described[group].State == "Dead" {
		return nil
	}
	info := &GroupInfo{
		Group: group, State: described[group].State, Members: described[group].Members,
		Commits: make(map[string]map[int32]GroupCommit),
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

// ControlKey fails: the tests that need it are left out.
func (c *Cluster) ControlKey(int16, func(kmsg.Request) (kmsg.Response, error, bool)) {
	panic("only kfake itself shows requests to a test")
}
