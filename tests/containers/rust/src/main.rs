//! Check testcontainers for Rust on an image: cargo run IMAGE TAG
use std::net::TcpStream;

use testcontainers_modules::kafka::apache::{Kafka, KAFKA_PORT};
use testcontainers_modules::testcontainers::{runners::SyncRunner, ImageExt};

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let container = Kafka::default()
        .with_name(&words[1])
        .with_tag(&words[2])
        .start()
        .expect("the container starts");
    let port = container.get_host_port_ipv4(KAFKA_PORT).expect("a mapped port");
    TcpStream::connect(("127.0.0.1", port)).expect("a connection to the mapped port");
    println!("ok");
}
