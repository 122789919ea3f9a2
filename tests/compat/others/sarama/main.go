// What test_others.py asks of sarama: sarama STEP BOOTSTRAP [NAME...]. Prints what a step has done, as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
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

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.ClientID = "sarama"
	made.Metadata.Retry.Max = 100
	made.Metadata.Retry.Backoff = 100 * time.Millisecond
	made.Producer.Return.Successes = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Idempotent = true
	made.Producer.Retry.Max = 200
	made.Producer.Retry.Backoff = 100 * time.Millisecond
	made.Producer.Transaction.Retry.Max = 200
	made.Producer.Transaction.Retry.Backoff = 100 * time.Millisecond
	made.Net.MaxOpenRequests = 1
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	return made
}

func produce(bootstrap, topic, count string) {
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	made := config()
	made.Producer.Compression = codecs[number(count)%len(codecs)]
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, made)
	check(err)
	for n := range number(count) {
		text := strconv.Itoa(n)
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic:   topic,
			Key:     sarama.StringEncoder("k" + strconv.Itoa(n%10)),
			Value:   sarama.StringEncoder(text),
			Headers: []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(text)}},
		})
		check(err)
		say(map[string]any{"sent": n})
	}
	check(producer.Close())
}

type member struct {
	number int
	each   func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage)
}

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (one member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			one.each(session, message)
		case <-session.Context().Done():
			return nil
		}
	}
}

// run joins a group and reads until `stop` is done.
func run(stop context.Context, bootstrap, topic, group string, made *sarama.Config, one member) {
	client, err := sarama.NewConsumerGroup([]string{bootstrap}, group, made)
	check(err)
	for stop.Err() == nil {
		if err := client.Consume(stop, []string{topic}, one); err != nil && stop.Err() == nil {
			time.Sleep(200 * time.Millisecond)
		}
	}
	check(client.Close())
}

// consume reads with two members until `count` different values were seen, and says who has read what.
func consume(bootstrap, topic, group, count string) {
	stop, finish := context.WithCancel(context.Background())
	var members sync.WaitGroup
	var seen sync.Map
	var guard sync.Mutex
	found := 0
	for n := range 2 {
		each := func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			value := string(message.Value)
			header := ""
			if len(message.Headers) > 0 {
				header = string(message.Headers[0].Value)
			}
			say(map[string]any{
				"member": n, "partition": message.Partition, "offset": message.Offset, "value": value, "header": header,
			})
			session.MarkMessage(message, "")
			guard.Lock()
			defer guard.Unlock()
			if _, before := seen.LoadOrStore(value, true); !before {
				found++
			}
			if found == number(count) {
				finish()
			}
		}
		members.Add(1)
		go func() {
			defer members.Done()
			run(stop, bootstrap, topic, group, config(), member{n, each})
		}()
	}
	members.Wait()
}

// pipeline sends each record of `input` to `output`, with its offset in one transaction; every third one is aborted first.
func pipeline(bootstrap, input, output, group, count string) {
	made := config()
	made.Producer.Transaction.ID = group + "-0"
	made.Producer.Transaction.Timeout = 30 * time.Second
	producer, err := sarama.NewAsyncProducer([]string{bootstrap}, made)
	// What a killed instance left open is aborted first. It does not wait for that on its own, with Kafka neither.
	for errors.Is(err, sarama.ErrConcurrentTransactions) {
		time.Sleep(100 * time.Millisecond)
		producer, err = sarama.NewAsyncProducer([]string{bootstrap}, made)
	}
	check(err)
	go func() {
		for range producer.Successes() {
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			check(failure)
		}
	}()
	stop, finish := context.WithCancel(context.Background())
	committed := 0
	reader := config()
	reader.Consumer.Offsets.AutoCommit.Enable = false
	var one sync.Mutex // each partition has a goroutine of its own, and the producer has one transaction
	each := func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
		one.Lock()
		defer one.Unlock()
		if stop.Err() != nil {
			return
		}
		attempts := []bool{true}
		if message.Offset%3 == 0 {
			attempts = []bool{false, true}
		}
		for _, commits := range attempts {
			check(producer.BeginTxn())
			producer.Input() <- &sarama.ProducerMessage{
				Topic: output, Key: sarama.ByteEncoder(message.Key), Value: sarama.StringEncoder("done " + string(message.Value)),
			}
			check(producer.AddMessageToTxn(message, group, nil))
			if commits {
				check(producer.CommitTxn())
			} else {
				check(producer.AbortTxn())
			}
		}
		session.MarkMessage(message, "")
		committed++
		if committed == number(count) {
			finish()
		}
	}
	run(stop, bootstrap, input, group, reader, member{0, each})
	check(producer.Close())
	say(map[string]any{"committed": committed})
}

func admin(bootstrap, topic string) {
	client, err := sarama.NewClusterAdmin([]string{bootstrap}, config())
	check(err)
	retention := "60000"
	detail := &sarama.TopicDetail{
		NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
	}
	check(client.CreateTopic(topic, detail, false))
	made, err := client.DescribeTopics([]string{topic})
	check(err)
	check(client.CreatePartitions(topic, 3, nil, false))
	grown, err := client.DescribeTopics([]string{topic})
	check(err)
	check(client.DeleteTopic(topic))
	left, err := client.ListTopics()
	check(err)
	_, isThere := left[topic]
	check(client.Close())
	say(map[string]any{"partitions": len(made[0].Partitions), "grown": len(grown[0].Partitions), "deleted": !isThere})
}

func main() {
	bootstrap, names := os.Args[2], os.Args[3:]
	switch os.Args[1] {
	case "produce":
		produce(bootstrap, names[0], names[1])
	case "consume":
		consume(bootstrap, names[0], names[1], names[2])
	case "pipeline":
		pipeline(bootstrap, names[0], names[1], names[2], names[3])
	case "admin":
		admin(bootstrap, names[0])
	}
}
