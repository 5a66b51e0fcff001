// Command kfake serves franz-go's fake cluster on one port until standard input closes.
//
//	kfake [-data DIR] [-certificate FILE] [-superuser NAME:PASSWORD] [-config KEY=VALUE]... PORT
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	data := flag.String("data", "", "keep everything in this folder")
	certificate := flag.String("certificate", "", "speak TLS with this file of key and certificate")
	superuser := flag.String("superuser", "", "NAME:PASSWORD of who may do everything; others need SASL/SCRAM-SHA-256 and ACLs")
	configs := map[string]string{}
	flag.Func("config", "KEY=VALUE of the broker", func(pair string) error {
		key, value, _ := strings.Cut(pair, "=")
		configs[key] = value
		return nil
	})
	flag.Parse()

	port := must(strconv.Atoi(flag.Arg(0)))
	options := []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(port), kfake.AllowAutoTopicCreation(), kfake.BrokerConfigs(configs),
	}
	if *data != "" {
		options = append(options, kfake.DataDir(*data))
	}
	if *certificate != "" {
		pair := must(tls.LoadX509KeyPair(*certificate, *certificate))
		options = append(options, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	if name, password, given := strings.Cut(*superuser, ":"); given {
		options = append(options, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("SCRAM-SHA-256", name, password))
	}
	cluster := must(kfake.NewCluster(options...))
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}
