//! Growth that is refused, and a repair whose table is moved away and whose memory has another use.

use crate::slotted::kinds::{Kind, key, value};
use farindex_fabric::OpKind;
use farindex_fabric::memory::Delivery;
use farindex_index::slotted::geometry::{LOCKED, Segment};
use farindex_index::{Cuckoo, IndexError, Insert, Lifecycle, Linear};
use farindex_pool::audit::Audit;
use farindex_pool::{PoolError, PoolOptions};
use farindex_testkit::alone::with_index;
use farindex_testkit::world::{Member, World};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// A resizer that finds no memory takes its name out of the root, once: another thread of its client may have become the
/// resizer by a second time.
fn gives_its_name_back_once<I: Kind>() {
    with_index(1 << 20, I::config(64), async |index: &I| {
        let (session, span) = (index.in_session(), index.in_session().span(OpKind::Other));
        let mut taken = Vec::new();
        for bytes in [64 << 10, 4 << 10] {
            while let Ok(at) = session.alloc(&span, index.root().node(), bytes).await {
                taken.push((at, bytes));
            }
        }
        let before = session.endpoint().meter();
        let refused = index.enlarge().await;
        assert!(matches!(refused, Err(IndexError::Pool(PoolError::Full { .. }))), "{refused:?}");
        // One puts the name into the root, one takes it out, and one clears the intent.
        let swaps = (session.endpoint().meter() - before).of(OpKind::Maintenance).total.cas;
        assert_eq!((swaps, index.geometry().next), (3, None));
        for (at, bytes) in taken {
            session.free(&span, at, bytes).await.expect("memory");
        }
        session.flush().await.expect("epochs");
        index.enlarge().await.expect("there is memory now, and no resizer");
    });
}

#[test]
fn linear_that_finds_no_memory_gives_its_name_back_once() {
    gives_its_name_back_once::<Linear>();
}

#[test]
fn cuckoo_that_finds_no_memory_gives_its_name_back_once() {
    gives_its_name_back_once::<Cuckoo>();
}

/// Epochs in which what was retired becomes free.
async fn pass_epochs(members: &[&Member]) {
    for _ in 0..4 {
        for member in members {
            member.client.tick(&member.endpoint).await.expect("a heartbeat");
            member.session.maintain().await.expect("what is free");
        }
    }
}

/// After so many polls of a repair, another client moves the table that it repairs, and the old table's memory is filled with
/// words that look like locks. The repair neither takes them for locks nor changes them. Returns whether that memory was filled.
async fn repair_and_move<I: Kind>(members: [Member; 2], polls: u32) -> bool {
    let [one, two] = &members;
    let index = I::create(&one.session, "test", &I::config(512)).await.expect("an index");
    for i in 0..300 {
        assert_eq!(index.insert(&key(i), &value(i, "value")).await, Ok(Insert::Inserted));
    }
    let other = I::open(&two.session, "test").await.expect("the index");
    other.enlarge().await.expect("a next table");
    let Segment { regions, width, start, .. } = other.geometry().current;
    let bytes = Segment::bytes_for(regions, width, two.session.pool().geometry(start.node()).chunk_size);
    let mut repair = pin!(index.recover());
    for _ in 0..polls {
        if let Poll::Ready(repaired) = poll_fn(|cx| Poll::Ready(repair.as_mut().poll(cx))).await {
            assert_eq!(repaired, Ok(0));
            return false;
        }
        two.client.tick(&two.endpoint).await.expect("a heartbeat");
    }
    while other.geometry().next.is_some() {
        other.move_one().await.expect("one more region");
    }
    let mut filled = Vec::new();
    let repaired = loop {
        pass_epochs(&[one, two]).await;
        let span = two.session.span(OpKind::Other);
        if filled.len() < 8 {
            let at = two.session.alloc(&span, start.node(), bytes).await.expect("memory");
            let words = vec![LOCKED; bytes as usize / 8];
            span.write(at, two.endpoint.buf_from_words(&words)).await.expect("a WRITE");
            filled.push(at);
        }
        if let Poll::Ready(repaired) = poll_fn(|cx| Poll::Ready(repair.as_mut().poll(cx))).await {
            break repaired;
        }
    };
    assert_eq!(repaired, Ok(0), "after {polls} polls");
    let span = two.session.span(OpKind::Other);
    for at in &filled {
        let buf = span.read(*at, bytes as usize).await.expect("a READ");
        assert!(buf.words().iter().all(|word| *word == LOCKED), "after {polls} polls");
    }
    filled.contains(&start)
}

fn survives_its_table<I: Kind>() {
    let mut reused = 0;
    for polls in 1..30 {
        let count = std::rc::Rc::new(std::cell::Cell::new(false));
        let outcome = std::rc::Rc::clone(&count);
        World::memory(1, 8 << 20, Delivery::Deferred).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let members = [ctx.join(&pool).await, ctx.join(&pool).await];
            outcome.set(repair_and_move::<I>(members, polls).await);
        });
        reused += u32::from(count.get());
    }
    assert!(reused > 0, "the memory of no table was used again while it was repaired");
}

#[test]
fn a_repair_of_linear_probing_stops_where_its_table_was_moved() {
    survives_its_table::<Linear>();
}

#[test]
fn a_repair_of_cuckoo_hashing_stops_where_its_table_was_moved() {
    survives_its_table::<Cuckoo>();
}

/// After so many polls of a growth, another client drops the index. Nothing of it is left. Returns how the growth has ended.
async fn grow_and_drop<I: Kind>([one, two]: [Member; 2], polls: u32) -> Result<(), IndexError> {
    let index = I::create(&one.session, "test", &I::config(64)).await.expect("an index");
    let mut growth = Box::pin(index.enlarge());
    let mut grown = None;
    for _ in 0..polls {
        if grown.is_none() {
            grown = poll_once(growth.as_mut()).await;
        }
        two.client.tick(&two.endpoint).await.expect("a heartbeat");
    }
    let mut dropping = Box::pin(I::drop_index(&two.session, "test"));
    let mut dropped = None;
    // The drop is far enough to wait for the growth, which then goes on.
    for _ in 0..20 {
        pass_epochs(&[&one, &two]).await;
        dropped = match dropped {
            None => poll_once(dropping.as_mut()).await,
            ended => ended,
        };
    }
    while grown.is_none() || dropped.is_none() {
        pass_epochs(&[&one, &two]).await;
        if grown.is_none() {
            grown = poll_once(growth.as_mut()).await;
        }
        if dropped.is_none() {
            dropped = poll_once(dropping.as_mut()).await;
        }
    }
    assert_eq!(dropped, Some(Ok(())), "after {polls} polls");
    drop((growth, dropping));
    drop(index);
    one.close_while_ticking(&[&two]).await;
    two.session.drain().await.expect("what is free");
    let audit = Audit::begin(&two.session, &two.span()).await.expect("an audit");
    let report = audit.settle(&two.session, &two.span()).await.expect("a report");
    let wrong: Vec<_> = report.problems.iter().cloned().chain(report.leak()).collect();
    assert_eq!(wrong, Vec::<String>::new(), "after {polls} polls, a growth that has ended with {grown:?}");
    grown.expect("it has ended")
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn leaves_nothing<I: Kind>() {
    let mut overtaken = 0;
    for polls in 0..20 {
        let ended = std::rc::Rc::new(std::cell::RefCell::new(Ok(())));
        let outcome = std::rc::Rc::clone(&ended);
        World::memory(1, 8 << 20, Delivery::Deferred).run(async move |ctx| {
            let pool = ctx.pool(&PoolOptions::default()).await;
            let members = [ctx.join(&pool).await, ctx.join(&pool).await];
            let grown = grow_and_drop::<I>(members, polls).await;
            *outcome.borrow_mut() = grown;
        });
        let ended = ended.replace(Ok(()));
        assert!(matches!(ended, Ok(()) | Err(IndexError::Dropped)), "after {polls} polls: {ended:?}");
        overtaken += u32::from(ended.is_err());
    }
    assert!(overtaken > 0, "no growth was overtaken by the drop");
}

/// The resizer has a segment in hand when it learns that its index was dropped.
#[test]
fn a_growth_of_linear_probing_that_a_drop_overtakes_leaves_nothing() {
    leaves_nothing::<Linear>();
}

#[test]
fn a_growth_of_cuckoo_hashing_that_a_drop_overtakes_leaves_nothing() {
    leaves_nothing::<Cuckoo>();
}
