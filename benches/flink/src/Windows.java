import java.time.Duration;
import java.util.ArrayList;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * The window queries with Flink's window operator, as its users write them: records are added to an
 * accumulator as they come, and a process window function only adds key and window.
 */
final class Windows {
    private Windows() {}

    private static final TypeInformation<Events.Bid> BID = TypeInformation.of(Events.Bid.class);
    private static final TypeInformation<Bids.AuctionCount> COUNT = TypeInformation.of(Bids.AuctionCount.class);

    /** q5: counts by auction and sliding window, then the highest by window. */
    static DataStream<Bids.AuctionCount> mostBids(DataStream<Events.Bid> bids) {
        return bids.keyBy(bid -> bid.auction, Types.LONG)
                .window(SlidingEventTimeWindows.of(Duration.ofSeconds(10), Duration.ofSeconds(2)))
                .aggregate(new CountBids(), new WithWindow(), COUNT, COUNT, COUNT)
                .keyBy(count -> count.windowEnd, Types.LONG)
                .process(new Bids.MostBids());
    }

    /** q7: highest bids by part and window, then by window. */
    static DataStream<Events.Bid> highestBids(DataStream<Events.Bid> bids) {
        TypeInformation<Bids.HighestBids.Open> accumulator = TypeInformation.of(Bids.HighestBids.Open.class);
        TumblingEventTimeWindows windows = TumblingEventTimeWindows.of(Duration.ofSeconds(10));
        return bids.keyBy(bid -> bid.price % Bids.HighestBids.PARTS, Types.LONG)
                .window(windows)
                .aggregate(new Highest(), new EachBid(), accumulator, accumulator, BID)
                .keyBy(Bids.HighestBids::windowOf, Types.LONG)
                .window(windows)
                .aggregate(new Highest(), new EachBid(), accumulator, accumulator, BID);
    }

    /** q8: what a person did in each window. */
    static DataStream<Tuple3<Long, String, Long>> newSellers(DataStream<Events.PersonOrAuction> events) {
        TypeInformation<Joins.NewSellers.Activity> activity = TypeInformation.of(Joins.NewSellers.Activity.class);
        return events.keyBy(event -> event.person, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
                .aggregate(
                        new Activities(),
                        new JoinedAndSold(),
                        activity,
                        activity,
                        Types.TUPLE(Types.LONG, Types.STRING, Types.LONG));
    }

    /** q11: sessions. */
    static DataStream<Bids.Session> sessions(DataStream<Events.Bid> bids) {
        TypeInformation<Bids.Session> session = TypeInformation.of(Bids.Session.class);
        return bids.keyBy(bid -> bid.bidder, Types.LONG)
                .window(EventTimeSessionWindows.withGap(Duration.ofMillis(Bids.Sessions.GAP)))
                .aggregate(new Extend(), session, session);
    }

    private static final class CountBids
            implements AggregateFunction<Events.Bid, Bids.AuctionCount, Bids.AuctionCount> {
        @Override
        public Bids.AuctionCount createAccumulator() {
            return new Bids.AuctionCount();
        }

        @Override
        public Bids.AuctionCount add(Events.Bid bid, Bids.AuctionCount count) {
            count.bids++;
            return count;
        }

        @Override
        public Bids.AuctionCount getResult(Bids.AuctionCount count) {
            return count;
        }

        @Override
        public Bids.AuctionCount merge(Bids.AuctionCount left, Bids.AuctionCount right) {
            left.bids += right.bids;
            return left;
        }
    }

    private static final class WithWindow
            extends ProcessWindowFunction<Bids.AuctionCount, Bids.AuctionCount, Long, TimeWindow> {
        @Override
        public void process(
                Long auction, Context context, Iterable<Bids.AuctionCount> counts, Collector<Bids.AuctionCount> out) {
            Bids.AuctionCount count = counts.iterator().next();
            count.auction = auction;
            count.windowEnd = context.window().getEnd();
            out.collect(count);
        }
    }

    /** The highest bids of one window. */
    private static final class Highest
            implements AggregateFunction<Events.Bid, Bids.HighestBids.Open, Bids.HighestBids.Open> {
        @Override
        public Bids.HighestBids.Open createAccumulator() {
            Bids.HighestBids.Open open = new Bids.HighestBids.Open();
            open.windows.add(new ArrayList<>(2));
            return open;
        }

        @Override
        public Bids.HighestBids.Open add(Events.Bid bid, Bids.HighestBids.Open open) {
            ArrayList<Events.Bid> highest = open.windows.get(0);
            if (!highest.isEmpty() && bid.price > highest.get(0).price) {
                highest.clear();
            }
            if (highest.isEmpty() || bid.price == highest.get(0).price) {
                highest.add(bid.copy());
            }
            return open;
        }

        @Override
        public Bids.HighestBids.Open getResult(Bids.HighestBids.Open open) {
            return open;
        }

        @Override
        public Bids.HighestBids.Open merge(Bids.HighestBids.Open left, Bids.HighestBids.Open right) {
            right.windows.get(0).forEach(bid -> add(bid, left));
            return left;
        }
    }

    private static final class EachBid
            extends ProcessWindowFunction<Bids.HighestBids.Open, Events.Bid, Long, TimeWindow> {
        @Override
        public void process(
                Long key, Context context, Iterable<Bids.HighestBids.Open> open, Collector<Events.Bid> out) {
            open.iterator().next().windows.get(0).forEach(out::collect);
        }
    }

    private static final class Activities
            implements AggregateFunction<
                    Events.PersonOrAuction, Joins.NewSellers.Activity, Joins.NewSellers.Activity> {
        @Override
        public Joins.NewSellers.Activity createAccumulator() {
            return new Joins.NewSellers.Activity();
        }

        @Override
        public Joins.NewSellers.Activity add(Events.PersonOrAuction event, Joins.NewSellers.Activity activity) {
            if (event.isPerson) {
                activity.name = event.name;
            } else {
                activity.emitted = true;
            }
            return activity;
        }

        @Override
        public Joins.NewSellers.Activity getResult(Joins.NewSellers.Activity activity) {
            return activity;
        }

        @Override
        public Joins.NewSellers.Activity merge(Joins.NewSellers.Activity left, Joins.NewSellers.Activity right) {
            left.name = left.name == null ? right.name : left.name;
            left.emitted |= right.emitted;
            return left;
        }
    }

    private static final class JoinedAndSold
            extends ProcessWindowFunction<
                    Joins.NewSellers.Activity, Tuple3<Long, String, Long>, Long, TimeWindow> {
        @Override
        public void process(
                Long person,
                Context context,
                Iterable<Joins.NewSellers.Activity> activities,
                Collector<Tuple3<Long, String, Long>> out) {
            Joins.NewSellers.Activity activity = activities.iterator().next();
            if (activity.name != null && activity.emitted) {
                out.collect(Tuple3.of(person, activity.name, context.window().getStart()));
            }
        }
    }

    private static final class Extend implements AggregateFunction<Events.Bid, Bids.Session, Bids.Session> {
        @Override
        public Bids.Session createAccumulator() {
            return new Bids.Session();
        }

        @Override
        public Bids.Session add(Events.Bid bid, Bids.Session session) {
            session.first = session.bids == 0 ? bid.dateTime : Math.min(session.first, bid.dateTime);
            session.last = Math.max(session.last, bid.dateTime);
            session.bidder = bid.bidder;
            session.bids++;
            return session;
        }

        @Override
        public Bids.Session getResult(Bids.Session session) {
            return session;
        }

        @Override
        public Bids.Session merge(Bids.Session left, Bids.Session right) {
            left.first = Math.min(left.first, right.first);
            left.last = Math.max(left.last, right.last);
            left.bids += right.bids;
            return left;
        }
    }
}
