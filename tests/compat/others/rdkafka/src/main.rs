// What test_others.py asks of rdkafka: program STEP BOOTSTRAP [NAME...]. Prints what a step has done, as JSON.
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::json;

const WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

fn config(bootstrap: &str) -> ClientConfig {
    let mut made = ClientConfig::new();
    made.set("bootstrap.servers", bootstrap)
        .set("client.id", "rdkafka")
        // Else it may wait for ever for a node that was away for a moment, with Kafka too.
        .set("metadata.recovery.strategy", "none");
    made
}

fn produce(bootstrap: &str, topic: &str, count: usize) {
    let codecs = ["none", "lz4", "snappy"];
    let producers: Vec<BaseProducer> = codecs
        .iter()
        .map(|codec| {
            let mut made = config(bootstrap);
            made.set("enable.idempotence", "true").set("compression.type", codec.to_string()).set("linger.ms", "0");
            made.create().unwrap()
        })
        .collect();
    for number in 0..count {
        let (key, value) = (format!("k{}", number % 10), number.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "number", value: Some(&value) });
        let producer = &producers[number * codecs.len() / count];
        producer.send(BaseRecord::to(topic).key(&key).payload(&value).headers(headers)).map_err(|(error, _)| error).unwrap();
        producer.flush(WAIT).unwrap();
        println!("{}", json!({"sent": number}));
    }
}

// Reads with two members until `count` different values were seen, and says who has read what.
fn consume(bootstrap: &str, topic: &str, group: &str, count: usize) {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let members: Vec<_> = (0..2)
        .map(|member| {
            let mut made = config(bootstrap);
            made.set("group.id", group)
                .set("auto.offset.reset", "earliest")
                .set("enable.auto.commit", "false")
                .set("session.timeout.ms", "10000");
            let (topic, seen) = (topic.to_string(), seen.clone());
            thread::spawn(move || {
                let consumer: BaseConsumer = made.create().unwrap();
                consumer.subscribe(&[&topic]).unwrap();
                while seen.lock().unwrap().len() < count {
                    let Some(Ok(message)) = consumer.poll(POLL) else { continue };
                    let value = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
                    let header = message.headers().map(|all| String::from_utf8(all.get(0).value.unwrap().to_vec()).unwrap());
                    println!(
                        "{}",
                        json!({"member": member, "partition": message.partition(), "offset": message.offset(),
                               "value": value, "header": header})
                    );
                    seen.lock().unwrap().insert(value);
                    while consumer.commit_message(&message, CommitMode::Sync).is_err() {
                        thread::sleep(POLL);
                    }
                }
            })
        })
        .collect();
    for member in members {
        member.join().unwrap();
    }
}

// Repeats a call of a transaction while librdkafka says that this helps.
fn retried(call: impl Fn() -> Result<(), KafkaError>) {
    while let Err(error) = call() {
        match error {
            KafkaError::Transaction(ref why) if why.is_retriable() => thread::sleep(POLL),
            _ => panic!("{error}"),
        }
    }
}

// Each record of `input` into `output`, with its offset in one transaction; every third one is aborted first.
fn pipeline(bootstrap: &str, input: &str, output: &str, group: &str, count: usize) {
    let mut sender = config(bootstrap);
    sender.set("transactional.id", format!("{group}-0")).set("transaction.timeout.ms", "30000");
    let producer: ThreadedProducer<DefaultProducerContext> = sender.create().unwrap();
    retried(|| producer.init_transactions(WAIT));
    let mut reader = config(bootstrap);
    reader.set("group.id", group).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = reader.create().unwrap();
    consumer.subscribe(&[input]).unwrap();
    let mut committed = 0;
    while committed < count {
        let Some(Ok(message)) = consumer.poll(POLL) else { continue };
        let value = format!("done {}", String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
        let attempts: &[bool] = if message.offset() % 3 == 0 { &[false, true] } else { &[true] };
        for commits in attempts {
            producer.begin_transaction().unwrap();
            producer
                .send(BaseRecord::to(output).key(message.key().unwrap()).payload(&value))
                .map_err(|(error, _)| error)
                .unwrap();
            let mut offsets = TopicPartitionList::new();
            offsets.add_partition_offset(input, message.partition(), Offset::Offset(message.offset() + 1)).unwrap();
            retried(|| producer.send_offsets_to_transaction(&offsets, &consumer.group_metadata().unwrap(), WAIT));
            retried(|| if *commits { producer.commit_transaction(WAIT) } else { producer.abort_transaction(WAIT) });
        }
        committed += 1;
    }
    println!("{}", json!({"committed": committed}));
}

// Waits for a topic to have so many partitions, and returns how many it has.
fn until(client: &AdminClient<DefaultClientContext>, topic: &str, wanted: usize) -> usize {
    // It asks for all topics: to ask for one creates it.
    let count = || {
        let all = client.inner().fetch_metadata(None, WAIT).unwrap();
        all.topics().iter().find(|one| one.name() == topic).map_or(0, |found| found.partitions().len())
    };
    for _ in 0..100 {
        if count() == wanted {
            break;
        }
        thread::sleep(POLL);
    }
    count()
}

fn admin(bootstrap: &str, topic: &str) {
    let client: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let options = AdminOptions::new().request_timeout(Some(WAIT));
    let new = NewTopic::new(topic, 2, TopicReplication::Fixed(1)).set("retention.ms", "60000");
    futures_executor::block_on(client.create_topics(&[new], &options)).unwrap()[0].as_ref().unwrap();
    let partitions = until(&client, topic, 2);
    futures_executor::block_on(client.create_partitions(&[NewPartitions::new(topic, 3)], &options)).unwrap()[0].as_ref().unwrap();
    let grown = until(&client, topic, 3);
    futures_executor::block_on(client.delete_topics(&[topic], &options)).unwrap()[0].as_ref().unwrap();
    println!("{}", json!({"partitions": partitions, "grown": grown, "deleted": until(&client, topic, 0) == 0}));
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (step, bootstrap) = (words[1].as_str(), words[2].as_str());
    let name = |index: usize| words[3 + index].as_str();
    let count = |index: usize| name(index).parse().unwrap();
    match step {
        "produce" => produce(bootstrap, name(0), count(1)),
        "consume" => consume(bootstrap, name(0), name(1), count(2)),
        "pipeline" => pipeline(bootstrap, name(0), name(1), name(2), count(3)),
        "admin" => admin(bootstrap, name(0)),
        _ => panic!("there is no step {step}"),
    }
}
