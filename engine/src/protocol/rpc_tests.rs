//! The bus, the loop skeleton and the gateway.

use super::*;
use crate::protocol::job_details::JobOverview;

fn heartbeat(from: Address, to: Address, number: u8) -> Envelope {
    let job = JobId::from_bytes([number; 16]);
    let message = Message::ResourceManager(ResourceManagerMessage::JobMasterHeartbeat(job));
    Envelope { from, to, fence: Fence::None, message }
}

fn ping(number: u8) -> Envelope {
    heartbeat(Address::Dispatcher, Address::ResourceManager, number)
}

async fn both(test: impl AsyncFn(RpcService)) {
    test(RpcService::new(Transport::Direct)).await;
    test(RpcService::new(Transport::Wire)).await;
}

#[tokio::test]
async fn messages_arrive_in_order_and_as_they_were_sent() {
    both(async |rpc| {
        let mut mailbox = rpc.register(Address::ResourceManager).unwrap();
        for number in 0..100 {
            assert_eq!(rpc.send(ping(number)), Delivery::Delivered);
        }
        for number in 0..100 {
            assert_eq!(mailbox.receive().await, Some(ping(number)));
        }
        assert_eq!(rpc.counts(), DeliveryCounts { delivered: 100, ..DeliveryCounts::default() });
    })
    .await;
}

#[tokio::test]
async fn an_address_has_one_owner_and_none_after_it_is_dropped() {
    let rpc = RpcService::new(Transport::Direct);
    assert_eq!(rpc.send(ping(1)), Delivery::Unreachable);
    let mailbox = rpc.register(Address::ResourceManager).unwrap();
    let taken = rpc.register(Address::ResourceManager).unwrap_err().to_string();
    assert_eq!(taken, "the address of ResourceManager is taken: its former owner has not ended");
    drop(mailbox);
    assert_eq!(rpc.send(ping(2)), Delivery::Unreachable);
    assert_eq!(rpc.counts().unreachable, 2);

    // One whose queue was closed from outside reads on, and frees nobody else's address.
    let mut former = rpc.register(Address::ResourceManager).unwrap();
    rpc.send(ping(3));
    rpc.unregister(&Address::ResourceManager);
    let mut next = rpc.register(Address::ResourceManager).unwrap();
    assert_eq!(former.receive().await, Some(ping(3)));
    assert_eq!(former.receive().await, None);
    drop(former);
    assert_eq!(rpc.send(ping(4)), Delivery::Delivered);
    assert_eq!(next.receive().await, Some(ping(4)));
}

#[tokio::test]
async fn a_full_queue_is_said_and_counted() {
    let rpc = RpcService::new(Transport::Direct);
    let mut mailbox = rpc.register(Address::ResourceManager).unwrap();
    for _ in 0..QUEUE_CAPACITY {
        assert_eq!(rpc.send(ping(1)), Delivery::Delivered);
    }
    assert_eq!(rpc.send(ping(2)), Delivery::QueueFull);
    assert_eq!(rpc.counts().queue_full, 1);
    let waiting = rpc.send_waiting(ping(3));
    tokio::pin!(waiting);
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("there is no room"),
        () = std::future::ready(()) => {}
    }
    mailbox.receive().await;
    assert_eq!(waiting.await, Delivery::Delivered);
}

/// Sends a burst to the ResourceManager when it is started, echoes what it gets to the
/// Dispatcher, and ends at its deadline or when told to.
struct Echo {
    burst: usize,
    deadline: Option<Timestamp>,
    is_terminated: bool,
}

impl Endpoint for Echo {
    fn on_start(&mut self, _now: Timestamp) -> Vec<Envelope> {
        let me = Address::JobMaster(JobId::from_bytes([0; 16]));
        (0..self.burst).map(|number| heartbeat(me.clone(), Address::ResourceManager, number as u8)).collect()
    }

    fn on_message(&mut self, envelope: Envelope, _now: Timestamp) -> Vec<Envelope> {
        self.is_terminated = envelope.from == Address::Client(9);
        vec![Envelope { to: Address::Dispatcher, ..envelope }]
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.is_terminated = true;
        vec![heartbeat(Address::Client(now.0 as u64), Address::Dispatcher, 0)]
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    fn is_terminated(&self) -> bool {
        self.is_terminated
    }
}

fn echo(rpc: &RpcService, burst: usize, deadline: Option<i64>, clock: Clock) -> tokio::task::JoinHandle<()> {
    let mailbox = rpc.register(Address::JobMaster(JobId::from_bytes([0; 16]))).unwrap();
    let endpoint = Echo { burst, deadline: deadline.map(Timestamp), is_terminated: false };
    tokio::spawn(run_endpoint(Box::new(endpoint), mailbox, clock, Handlers::MayBlock))
}

fn to_echo(from: Address) -> Envelope {
    heartbeat(from, Address::JobMaster(JobId::from_bytes([0; 16])), 7)
}

#[tokio::test]
async fn a_loop_hands_messages_on_and_ends_when_its_component_does() {
    both(async |rpc| {
        let mut dispatcher = rpc.register(Address::Dispatcher).unwrap();
        let running = echo(&rpc, 0, None, Clock::System);
        rpc.send(to_echo(Address::Client(1)));
        rpc.send(to_echo(Address::Client(9)));
        rpc.send(to_echo(Address::Client(2)));
        running.await.unwrap();
        let from = async |mailbox: &mut Mailbox| mailbox.receive().await.map(|envelope| envelope.from);
        assert_eq!(from(&mut dispatcher).await, Some(Address::Client(1)));
        assert_eq!(from(&mut dispatcher).await, Some(Address::Client(9)));
        assert_eq!(rpc.send(to_echo(Address::Client(3))), Delivery::Unreachable);
    })
    .await;
}

#[tokio::test]
async fn a_loop_ends_when_its_address_is_closed() {
    let rpc = RpcService::new(Transport::Direct);
    let running = echo(&rpc, 0, None, Clock::System);
    rpc.unregister(&Address::JobMaster(JobId::from_bytes([0; 16])));
    running.await.unwrap();
}

#[tokio::test]
async fn a_deadline_comes_when_the_clock_says_so() {
    let rpc = RpcService::new(Transport::Direct);
    let mut dispatcher = rpc.register(Address::Dispatcher).unwrap();
    let clock = Clock::new_virtual(Timestamp(0));
    let running = echo(&rpc, 0, Some(1000), clock.clone());
    clock.advance(Duration::from_millis(999));
    rpc.send(to_echo(Address::Client(1)));
    assert_eq!(dispatcher.receive().await.unwrap().from, Address::Client(1));
    clock.advance(Duration::from_millis(1));
    assert_eq!(dispatcher.receive().await.unwrap().from, Address::Client(1000));
    running.await.unwrap();
}

#[tokio::test]
async fn what_a_full_queue_does_not_take_is_sent_later_and_in_order() {
    let rpc = RpcService::new(Transport::Direct);
    let mut manager = rpc.register(Address::ResourceManager).unwrap();
    let mut dispatcher = rpc.register(Address::Dispatcher).unwrap();
    let burst = QUEUE_CAPACITY + 300;
    let running = echo(&rpc, burst, None, Clock::System);
    // The loop goes on meanwhile, and its last messages are delivered after its end.
    rpc.send(to_echo(Address::Client(9)));
    assert_eq!(dispatcher.receive().await.unwrap().from, Address::Client(9));
    assert!(!running.is_finished());
    for number in 0..burst {
        let expected = JobId::from_bytes([number as u8; 16]);
        let message = manager.receive().await.unwrap().message;
        assert_eq!(message, Message::ResourceManager(ResourceManagerMessage::JobMasterHeartbeat(expected)));
    }
    running.await.unwrap();
    assert_eq!(rpc.counts().given_up, 0);
}

#[test]
fn the_oldest_messages_are_given_up_when_a_receiver_is_stuck() {
    let rpc = RpcService::new(Transport::Direct);
    let mut manager = rpc.register(Address::ResourceManager).unwrap();
    let mut outbox = Outbox { rpc: rpc.clone(), waiting: VecDeque::new() };
    for _ in 0..QUEUE_CAPACITY {
        outbox.send(vec![ping(0)]);
    }
    outbox.waiting.extend((0..OUTBOX_CAPACITY).map(|_| ping(1)));
    outbox.send(vec![ping(2), ping(3)]);
    assert_eq!((outbox.waiting.len(), rpc.counts().given_up), (OUTBOX_CAPACITY, 2));
    assert_eq!(outbox.waiting.back(), Some(&ping(3)));
    manager.receiver.close();
    outbox.flush();
    assert_eq!(outbox.waiting.len(), 0);
}

struct Client {
    gateway: DispatcherGateway,
    dispatcher: Mailbox,
    leader: watch::Sender<Option<Fence>>,
    running: tokio::task::JoinHandle<()>,
}

fn fence(number: u8) -> Fence {
    Fence::Dispatcher(DispatcherId::from_bytes([number; 16]))
}

fn client(rpc: &RpcService) -> Client {
    let dispatcher = rpc.register(Address::Dispatcher).unwrap();
    let (calls_sender, calls) = mpsc::channel(4);
    let (leader, listener) = watch::channel(Some(fence(1)));
    let mailbox = rpc.register(Address::Client(0)).unwrap();
    let running = tokio::spawn(run_gateway(calls, mailbox, listener));
    Client { gateway: DispatcherGateway::new(calls_sender), dispatcher, leader, running }
}

fn ask(
    client: &Client,
    request: DispatcherRequest,
) -> tokio::task::JoinHandle<Result<DispatcherResponse, DispatcherError>> {
    let gateway = client.gateway.clone();
    tokio::spawn(async move { gateway.request(request).await })
}

fn jobs(name: &str) -> DispatcherResponse {
    DispatcherResponse::Jobs(vec![JobOverview {
        job: JobId::from_bytes([1; 16]),
        name: name.to_owned(),
        status: crate::base::status::JobStatus::Running,
        started: Timestamp(1),
        ended: None,
        last_modified: Timestamp(2),
        tasks: BTreeMap::new(),
    }])
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order() {
    both(async |rpc| {
        let mut client = client(&rpc);
        let mut asked = Vec::new();
        for _ in 0..2 {
            let call = ask(&client, DispatcherRequest::ListJobs);
            let envelope = client.dispatcher.receive().await.unwrap();
            assert_eq!((envelope.fence, &envelope.from), (fence(1), &Address::Client(0)));
            let Message::Dispatcher(DispatcherMessage::Request(number, DispatcherRequest::ListJobs)) = envelope.message
            else {
                panic!("{envelope:?}")
            };
            asked.push((number, call));
        }
        for (name, (number, call)) in ["second", "first"].into_iter().zip(asked.into_iter().rev()) {
            let message = Message::Client(number, jobs(name));
            let (from, to) = (Address::Dispatcher, Address::Client(0));
            rpc.send(Envelope { from, to, fence: Fence::None, message });
            assert_eq!(call.await.unwrap(), Ok(jobs(name)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_that_no_leader_answers_is_refused() {
    let rpc = RpcService::new(Transport::Direct);
    let no_leader = Err(DispatcherError::NoLeader("Dispatcher".to_owned()));
    let mut client = client(&rpc);
    let waiting = ask(&client, DispatcherRequest::ListJobs);
    client.dispatcher.receive().await.unwrap();
    client.leader.send(None).unwrap();
    assert_eq!(waiting.await.unwrap(), no_leader);
    assert_eq!(ask(&client, DispatcherRequest::ListJobs).await.unwrap(), no_leader);

    client.leader.send(Some(fence(2))).unwrap();
    let waiting = ask(&client, DispatcherRequest::ListJobs);
    assert_eq!(client.dispatcher.receive().await.unwrap().fence, fence(2));
    rpc.unregister(&Address::Client(0));
    assert_eq!(waiting.await.unwrap(), no_leader);
    client.running.await.unwrap();
    assert_eq!(client.gateway.request(DispatcherRequest::ListJobs).await, no_leader);
}

#[tokio::test]
async fn a_request_to_a_dispatcher_that_is_gone_is_refused() {
    let rpc = RpcService::new(Transport::Direct);
    let client = client(&rpc);
    rpc.unregister(&Address::Dispatcher);
    let refused = ask(&client, DispatcherRequest::Shutdown).await.unwrap();
    assert_eq!(refused, Err(DispatcherError::NoLeader("Dispatcher".to_owned())));
}
