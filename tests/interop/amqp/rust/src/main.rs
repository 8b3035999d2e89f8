//! Runs commands for fe2o3-amqp: one JSON object per line of standard input, one reply per line of
//! standard output. See ../../clients.py for the commands and ../../values.py for the form of
//! values. Only what the verbs need: strings, ints and data.

use std::{error::Error, io::BufRead, time::Duration};

use fe2o3_amqp::{
    connection::Connection,
    link::{delivery::Delivery, receiver::CreditMode, Receiver, Sender},
    sasl_profile::SaslProfile,
    session::Session,
    types::{
        definitions::{self, AmqpError, SenderSettleMode},
        messaging::{
            ApplicationProperties, Body, Data, Header, Message, Modified, Outcome, Source,
        },
        primitives::{Binary, SimpleValue, Value},
    },
};
use fe2o3_amqp_ext::filters::SelectorFilter;
use serde_json::{json, Value as Json};
use tokio::time::timeout;

type Failure = Box<dyn Error>;

const LONG: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of the broker");
    for line in std::io::stdin().lock().lines() {
        let asked: Json = serde_json::from_str(&line.unwrap()).unwrap();
        let reply = match timeout(LONG, run(&url, &asked)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => json!({"error": format!("{error} {error:?}")}),
            Err(_) => json!({"error": "took more than 60 s"}),
        };
        println!("{reply}");
    }
}

async fn run(url: &str, asked: &Json) -> Result<Json, Failure> {
    let mut builder = Connection::builder()
        .container_id(format!("fe2o3-{}", std::process::id()))
        .sasl_profile(SaslProfile::Anonymous);
    if let Some(size) = asked["frame_bytes"].as_u64() {
        builder = builder.max_frame_size(size as u32);
    }
    let mut connection = builder.open(url).await?;
    let mut session = Session::begin(&mut connection).await?;
    let reply = match asked["verb"].as_str() {
        Some("send") => send(&mut session, asked).await,
        Some("receive") => receive(&mut session, asked).await,
        other => Err(format!("no verb {other:?}").into()),
    };
    let _ = session.end().await;
    let _ = connection.close().await;
    reply
}

fn text<'a>(asked: &'a Json, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or_default()
}

fn is_set(asked: &Json, name: &str) -> bool {
    asked[name].as_bool().unwrap_or(false)
}

async fn send(
    session: &mut fe2o3_amqp::session::SessionHandle<()>,
    asked: &Json,
) -> Result<Json, Failure> {
    let settled = is_set(asked, "settled");
    let mode = if settled { SenderSettleMode::Settled } else { SenderSettleMode::Unsettled };
    let mut sender = Sender::builder()
        .name("sender")
        .target(text(asked, "address"))
        .sender_settle_mode(mode)
        .attach(session)
        .await?;
    let mut outcomes = Vec::new();
    for fields in asked["messages"].as_array().unwrap() {
        let outcome = sender.send(decode_message(fields)).await?;
        outcomes.push(match outcome {
            _ if settled => "settled",
            Outcome::Accepted(_) => "accepted",
            Outcome::Rejected(_) => "rejected",
            Outcome::Released(_) => "released",
            Outcome::Modified(_) => "modified",
            #[allow(unreachable_patterns)]
            _ => "other",
        });
    }
    sender.close().await?;
    Ok(json!({"outcomes": outcomes}))
}

async fn receive(
    session: &mut fe2o3_amqp::session::SessionHandle<()>,
    asked: &Json,
) -> Result<Json, Failure> {
    let count = asked["count"].as_u64().unwrap() as usize;
    let credit = (asked["credit"].as_u64().unwrap_or(0) as u32).max(count as u32);
    let mut source = Source::builder().address(text(asked, "address"));
    if let Some(selector) = asked["selector"].as_str() {
        source = source.add_to_filter("selector", SelectorFilter(selector.to_string()));
    }
    let mut receiver = Receiver::builder()
        .name("receiver")
        .source(source.build())
        .credit_mode(CreditMode::Manual)
        .attach(session)
        .await?;
    receiver.set_credit(credit).await?;
    let mut messages = Vec::new();
    while messages.len() < count {
        take(&mut receiver, asked, &mut messages).await?;
    }
    let mut reply = json!({});
    if is_set(asked, "drain") {
        receiver.drain().await?;
        // The client does not tell when the drain is over: what came before it is there by then.
        let short = Duration::from_secs(1);
        while timeout(short, take(&mut receiver, asked, &mut messages)).await.is_ok() {}
        reply["drained"] = json!(true);
    }
    receiver.close().await?;
    reply["messages"] = json!(messages);
    Ok(reply)
}

async fn take(
    receiver: &mut Receiver,
    asked: &Json,
    messages: &mut Vec<Json>,
) -> Result<(), Failure> {
    let delivery: Delivery<Body<Value>> = receiver.recv().await?;
    messages.push(encode_message(delivery.message()));
    match asked["outcome"].as_str().unwrap_or("accept") {
        "accept" => receiver.accept(&delivery).await?,
        "release" => receiver.release(&delivery).await?,
        "reject" => {
            let error = definitions::Error::new(
                AmqpError::NotAllowed,
                Some("not wanted".to_string()),
                None,
            );
            receiver.reject(&delivery, error).await?
        }
        "modify" => {
            let modified = Modified {
                delivery_failed: Some(is_set(asked, "failed")),
                undeliverable_here: Some(is_set(asked, "undeliverable")),
                message_annotations: None,
            };
            receiver.modify(&delivery, modified).await?
        }
        _ => {}
    }
    Ok(())
}

// ---- Messages

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn decode_message(fields: &Json) -> Message<Body<Value>> {
    let body = match fields["body"][0].as_str() {
        Some("data") => {
            let content = unhex(fields["body"][1].as_str().unwrap());
            Body::Data(vec![Data(Binary::from(content))].into())
        }
        _ => Body::Value(fe2o3_amqp::types::messaging::AmqpValue(decode(&fields["body"][1]))),
    };
    let mut message = Message::from(body);
    if let Some(header) = fields["header"].as_object() {
        message.header = Some(Header {
            durable: header.get("durable").and_then(Json::as_bool).unwrap_or(false),
            ..Default::default()
        });
    }
    if let Some(pairs) = fields["application_properties"].as_array() {
        let mut properties = ApplicationProperties::default();
        for pair in pairs {
            let value = match decode(&pair[1]) {
                Value::Int(value) => SimpleValue::Int(value),
                Value::String(value) => SimpleValue::String(value),
                other => panic!("{other:?}"),
            };
            properties.insert(pair[0][1].as_str().unwrap().to_string(), value);
        }
        message.application_properties = Some(properties);
    }
    message
}

fn decode(typed: &Json) -> Value {
    let text = typed[1].as_str().unwrap_or_default();
    match typed[0].as_str() {
        Some("string") => Value::String(text.to_string()),
        Some("int") => Value::Int(text.parse().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn encode_message(message: &Message<Body<Value>>) -> Json {
    let header = message.header.clone().unwrap_or_default();
    let body = match &message.body {
        Body::Data(batch) => {
            let parts: Vec<String> = batch
                .iter()
                .map(|data| data.0.iter().map(|octet| format!("{octet:02x}")).collect())
                .collect();
            json!(["data", parts.concat()])
        }
        Body::Value(value) => json!(["value", encode(&value.0)]),
        _ => json!(["other"]),
    };
    let pairs: Vec<Json> = message
        .application_properties
        .iter()
        .flat_map(|properties| properties.iter())
        .map(|(name, value)| json!([["string", name], encode(&value.clone().into())]))
        .collect();
    json!({
        "header": {"durable": header.durable, "delivery_count": header.delivery_count},
        "application_properties": pairs,
        "body": body,
    })
}

fn encode(value: &Value) -> Json {
    match value {
        Value::String(text) => json!(["string", text]),
        Value::Int(number) => json!(["int", number.to_string()]),
        other => json!(["unknown", format!("{other:?}")]),
    }
}
