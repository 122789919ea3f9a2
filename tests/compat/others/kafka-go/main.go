// What test_others.py asks of kafka-go: kafka-go STEP BOOTSTRAP [NAME...]. Prints what a step has done, as JSON.
// It has no idempotent producer and no transactions, and its readers return aborted records and the markers of
// transactions, whichever broker they read from: what is no number is left out here.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

var printing sync.Mutex

func say(what map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(what)
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	check(err)
	return found
}

func produce(bootstrap, topic, count string) {
	codecs := []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}
	for n := range number(count) {
		text := strconv.Itoa(n)
		writer := writers(bootstrap, topic, codecs[n%len(codecs)])
		check(writer.WriteMessages(context.Background(), kafka.Message{
			Key: []byte("k" + strconv.Itoa(n%10)), Value: []byte(text), Headers: []kafka.Header{{Key: "number", Value: []byte(text)}},
		}))
		say(map[string]any{"sent": n})
	}
}

var made = map[kafka.Compression]*kafka.Writer{}

func writers(bootstrap, topic string, codec kafka.Compression) *kafka.Writer {
	if made[codec] == nil {
		made[codec] = &kafka.Writer{
			Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: &kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll,
			Compression: codec, BatchTimeout: time.Millisecond, MaxAttempts: 200, WriteBackoffMax: time.Second,
		}
	}
	return made[codec]
}

func consume(bootstrap, topic, group, count string) {
	stop, finish := context.WithCancel(context.Background())
	var members sync.WaitGroup
	var guard sync.Mutex
	seen := map[string]bool{}
	for n := range 2 {
		members.Add(1)
		go func() {
			defer members.Done()
			reader := kafka.NewReader(kafka.ReaderConfig{
				Brokers: []string{bootstrap}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
				IsolationLevel: kafka.ReadCommitted, MaxWait: 200 * time.Millisecond, SessionTimeout: 10 * time.Second,
				RebalanceTimeout: 10 * time.Second,
			})
			for stop.Err() == nil {
				message, err := reader.FetchMessage(stop)
				if err != nil {
					continue
				}
				header := ""
				if len(message.Headers) > 0 {
					header = string(message.Headers[0].Value)
				}
				value := string(message.Value)
				if _, err := strconv.Atoi(value); err != nil {
					continue
				}
				say(map[string]any{
					"member": n, "partition": message.Partition, "offset": message.Offset, "value": value, "header": header,
				})
				guard.Lock()
				seen[value] = true
				if len(seen) == number(count) {
					finish()
				}
				guard.Unlock()
				// ReadMessage commits, too, but returns no message where that fails.
				for reader.CommitMessages(context.Background(), message) != nil {
					time.Sleep(100 * time.Millisecond)
				}
			}
			check(reader.Close())
		}()
	}
	members.Wait()
}

func admin(bootstrap, topic string) {
	// It answers from what it remembers, which is older than what was changed a moment ago.
	client := &kafka.Client{
		Addr: kafka.TCP(bootstrap), Timeout: 30 * time.Second, Transport: &kafka.Transport{MetadataTTL: 50 * time.Millisecond},
	}
	here := context.Background()
	created, err := client.CreateTopics(here, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: 2, ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "60000"}},
	}}})
	check(err)
	check(created.Errors[topic])
	partitions := until(client, topic, 2)
	grown, err := client.CreatePartitions(here, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}},
	})
	check(err)
	check(grown.Errors[topic])
	more := until(client, topic, 3)
	deleted, err := client.DeleteTopics(here, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	check(err)
	check(deleted.Errors[topic])
	say(map[string]any{"partitions": partitions, "grown": more, "deleted": until(client, topic, 0) == 0})
}

// until waits for a topic to have so many partitions, and returns how many it has.
func until(client *kafka.Client, topic string, wanted int) int {
	for range 100 {
		if count(client, topic) == wanted {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return count(client, topic)
}

func count(client *kafka.Client, topic string) int {
	found, err := client.Metadata(context.Background(), &kafka.MetadataRequest{Topics: []string{topic}})
	check(err)
	return len(found.Topics[0].Partitions)
}

func main() {
	bootstrap, names := os.Args[2], os.Args[3:]
	switch os.Args[1] {
	case "produce":
		produce(bootstrap, names[0], names[1])
	case "consume":
		consume(bootstrap, names[0], names[1], names[2])
	case "admin":
		admin(bootstrap, names[0])
	}
}
