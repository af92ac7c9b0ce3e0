//! Queries that join people, auctions and bids.

use std::time::Duration;

use engine_sdk::prelude::*;

use crate::events::{Bid, timed};

const CATEGORY: u64 = 10;

/// What q3 needs of people and auctions.
#[derive(Record)]
pub enum SellerEvent<'a> {
    Person(Seller<'a>),
    Auction(Listing),
    #[record(other)]
    Other,
}

#[derive(Record)]
pub struct Seller<'a> {
    pub id: u64,
    pub name: &'a str,
    pub city: &'a str,
    pub state: &'a str,
}

#[derive(Record)]
pub struct Listing {
    pub id: u64,
    pub seller: u64,
    pub category: u64,
}

/// q3: who sells in a category, in some states, as soon as seller and auction are known.
pub fn local_item_suggestion(events: &DataStream<SellerEvent<'static>>) -> DataStream<str> {
    let sellers = events.flat_map(|event, out: &mut Collector<Seller<'_>>| match event {
        SellerEvent::Person(seller) if matches!(seller.state, "or" | "id" | "ca") => out.collect(seller),
        _ => {}
    });
    let listings = events.flat_map(|event, out: &mut Collector<Listing>| match event {
        SellerEvent::Auction(listing) if listing.category == CATEGORY => out.collect(listing),
        _ => {}
    });
    listings
        .key_by(|listing| listing.seller)
        .regular_join(&sellers.key_by(|seller| seller.id))
        .process(|listing, seller, out: &mut Collector<str>| {
            out.csv((seller.name, seller.city, seller.state, listing.id));
        })
        .uid("items-of-sellers")
}

/// What q8 needs of people and auctions.
#[derive(Record)]
pub enum UserEvent<'a> {
    Person(User<'a>),
    Auction(Offer),
    #[record(other)]
    Other,
}

#[derive(Record)]
pub struct User<'a> {
    pub id: u64,
    pub name: &'a str,
    pub date_time: i64,
}

#[derive(Record)]
pub struct Offer {
    pub seller: u64,
    pub date_time: i64,
}

/// q8: people who opened an auction in the window in which they joined.
pub fn monitor_new_users(events: &DataStream<UserEvent<'static>>) -> DataStream<str> {
    let events = timed(&events.filter(|event| !matches!(event, UserEvent::Other)), |event| match event {
        UserEvent::Person(user) => user.date_time,
        UserEvent::Auction(offer) => offer.date_time,
        UserEvent::Other => 0,
    });
    let users = events.flat_map(|event, out: &mut Collector<User<'_>>| {
        if let UserEvent::Person(user) = event {
            out.collect(user);
        }
    });
    let offers = events.flat_map(|event, out: &mut Collector<Offer>| {
        if let UserEvent::Auction(offer) = event {
            out.collect(offer);
        }
    });
    users
        .co_group(&offers)
        .where_(|user| user.id)
        .equal_to(|offer| offer.seller)
        .window(TumblingEventTimeWindows::of(Duration::from_secs(10)))
        .apply(|users, offers, ctx, out: &mut Collector<str>| {
            if !offers.is_empty() {
                users.for_each(|user| out.csv((user.id, user.name, ctx.window().start)));
            }
        })
        .uid("offers-of-new-users")
}

/// What q20 needs of auctions and bids.
#[derive(Record)]
pub enum ExpansionEvent {
    Auction(Auction),
    Bid(Bid),
    #[record(other)]
    Other,
}

#[derive(Record)]
pub struct Auction {
    pub id: u64,
    pub seller: u64,
    pub category: u64,
    pub expires: i64,
}

/// q20: bids on auctions of a category, with the auction, as soon as both are known.
pub fn expanded_bids(events: &DataStream<ExpansionEvent>) -> DataStream<str> {
    let auctions = events.flat_map(|event, out: &mut Collector<Auction>| match event {
        ExpansionEvent::Auction(auction) if auction.category == CATEGORY => out.collect(auction),
        _ => {}
    });
    let bids = events.flat_map(|event, out: &mut Collector<Bid>| {
        if let ExpansionEvent::Bid(bid) = event {
            out.collect(bid);
        }
    });
    bids.key_by(|bid| bid.auction)
        .regular_join(&auctions.key_by(|auction| auction.id))
        .process(|bid, auction, out: &mut Collector<str>| {
            out.csv((bid.auction, bid.bidder, bid.price, bid.date_time, auction.seller, auction.expires));
        })
        .uid("expanded-bids")
}
