//! Runs the scenarios of clients of RocketMQ 5 with Apache's Rust client; prints a line of JSON for each.

use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

const PATIENCE: Duration = Duration::from_secs(60);

fn client(endpoint: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoint);
    option.set_enable_tls(false);
    option
}

async fn take(endpoint: &str, topic: String, group: String, count: usize) -> Vec<String> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic.clone()]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, client(endpoint)).unwrap();
    consumer.start().await.unwrap();
    let mut found = Vec::new();
    let began = Instant::now();
    while found.len() < count && began.elapsed() < PATIENCE {
        let all = FilterExpression::new(FilterType::Tag, "*");
        for message in consumer.receive(topic.clone(), &all).await.unwrap_or_default() {
            found.push(String::from_utf8(message.body().to_vec()).unwrap());
            consumer.ack(&message).await.unwrap();
        }
    }
    consumer.shutdown().await.unwrap();
    found
}

fn tell(scenario: &str, got: Vec<String>) {
    println!("{{\"scenario\": \"{scenario}\", \"got\": {got:?}}}");
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (endpoint, run) = (arguments[1].as_str(), arguments[2].as_str());
    let (normal, fifo) = (format!("N{run}"), format!("F{run}"));
    let mut option = ProducerOption::default();
    option.set_topics(vec![normal.clone(), fifo.clone()]);
    let mut producer = Producer::new(option, client(endpoint)).unwrap();
    producer.start().await.unwrap();
    for number in 0..10 {
        let message = MessageBuilder::builder()
            .set_topic(normal.clone())
            .set_tag("a")
            .set_body(format!("m{number}").into_bytes())
            .build()
            .unwrap();
        producer.send(message).await.unwrap();
    }
    for number in 0..6 {
        let message =
            MessageBuilder::fifo_message_builder(fifo.clone(), format!("f{number}").into_bytes(), "g").build().unwrap();
        producer.send(message).await.unwrap();
    }
    producer.shutdown().await.unwrap();
    let mut bodies = take(endpoint, normal, format!("GN{run}"), 10).await;
    bodies.sort();
    tell("normal", bodies);
    tell("fifo", take(endpoint, fifo, format!("GF{run}"), 6).await);
}
