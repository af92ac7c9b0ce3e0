import java.io.IOException;
import java.io.Serializable;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.reader.SimpleStreamFormat;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.flink.types.CopyableValue;
import org.apache.flink.types.StringValue;

/**
 * Nexmark events as the queries see them, and how they are read.
 *
 * <p>Records are Flink's value types: they write and read their own fields, without reflection,
 * null flags or boxes, which is the fastest of the serializers that Flink brings.
 */
final class Events {
    private Events() {}

    /** A record or a state that writes and reads its own fields. */
    abstract static class Fields<T extends Fields<T>> implements CopyableValue<T> {
        @Override
        public int getBinaryLength() {
            return -1;
        }

        @Override
        public void copy(DataInputView source, DataOutputView target) throws IOException {
            T record = copy();
            record.read(source);
            record.write(target);
        }
    }

    /** A bid. */
    public static final class Bid extends Fields<Bid> {
        public long auction;
        public long bidder;
        public long price;
        public long dateTime;

        /** Whether this bid comes before another in the order: highest price, then earliest, then smallest bidder. */
        boolean beats(Bid other) {
            if (price != other.price) {
                return price > other.price;
            }
            return dateTime < other.dateTime || (dateTime == other.dateTime && bidder < other.bidder);
        }

        @Override
        public void copyTo(Bid target) {
            target.auction = auction;
            target.bidder = bidder;
            target.price = price;
            target.dateTime = dateTime;
        }

        @Override
        public Bid copy() {
            Bid bid = new Bid();
            copyTo(bid);
            return bid;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeLong(auction);
            out.writeLong(bidder);
            out.writeLong(price);
            out.writeLong(dateTime);
        }

        @Override
        public void read(DataInputView in) throws IOException {
            auction = in.readLong();
            bidder = in.readLong();
            price = in.readLong();
            dateTime = in.readLong();
        }
    }

    /** A person, or an auction of that person: both sides of a join as one stream, so that it has one input to read. */
    public static final class PersonOrAuction extends Fields<PersonOrAuction> {
        /** The person's id; an auction's seller. */
        public long person;
        public long dateTime;
        public boolean isPerson;
        /** Of a person. */
        public String name = "";
        public String city = "";
        public String state = "";
        /** Of an auction. */
        public long auction;
        public long category;

        @Override
        public void copyTo(PersonOrAuction target) {
            target.person = person;
            target.dateTime = dateTime;
            target.isPerson = isPerson;
            target.name = name;
            target.city = city;
            target.state = state;
            target.auction = auction;
            target.category = category;
        }

        @Override
        public PersonOrAuction copy() {
            PersonOrAuction event = new PersonOrAuction();
            copyTo(event);
            return event;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeBoolean(isPerson);
            out.writeLong(person);
            out.writeLong(dateTime);
            if (isPerson) {
                StringValue.writeString(name, out);
                StringValue.writeString(city, out);
                StringValue.writeString(state, out);
            } else {
                out.writeLong(auction);
                out.writeLong(category);
            }
        }

        @Override
        public void read(DataInputView in) throws IOException {
            isPerson = in.readBoolean();
            person = in.readLong();
            dateTime = in.readLong();
            if (isPerson) {
                name = StringValue.readString(in);
                city = StringValue.readString(in);
                state = StringValue.readString(in);
            } else {
                auction = in.readLong();
                category = in.readLong();
            }
        }
    }

    /** An auction, or a bid on it: both sides of a join as one stream, so that it has one input to read. */
    public static final class AuctionOrBid extends Fields<AuctionOrBid> {
        public boolean isBid;
        /** Auction and time of both; bidder and price of a bid. */
        public Bid bid = new Bid();
        /** Of an auction. */
        public long expires;
        public long seller;
        public long category;
        public String itemName = "";

        @Override
        public void copyTo(AuctionOrBid target) {
            target.isBid = isBid;
            bid.copyTo(target.bid);
            target.expires = expires;
            target.seller = seller;
            target.category = category;
            target.itemName = itemName;
        }

        @Override
        public AuctionOrBid copy() {
            AuctionOrBid event = new AuctionOrBid();
            copyTo(event);
            return event;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeBoolean(isBid);
            bid.write(out);
            if (!isBid) {
                out.writeLong(expires);
                out.writeLong(seller);
                out.writeLong(category);
                StringValue.writeString(itemName, out);
            }
        }

        @Override
        public void read(DataInputView in) throws IOException {
            isBid = in.readBoolean();
            bid.read(in);
            if (!isBid) {
                expires = in.readLong();
                seller = in.readLong();
                category = in.readLong();
                itemName = StringValue.readString(in);
            }
        }
    }

    /** Reads the fields of one event, after its opening brace; null for an event that is passed over. */
    interface Decoder<T> extends Serializable {
        T decode(String kind, JsonParser parser) throws IOException;
    }

    static Bid bid(String kind, JsonParser parser) throws IOException {
        if (!kind.equals("Bid")) {
            return null;
        }
        Bid bid = new Bid();
        bidFields(bid, parser);
        return bid;
    }

    static PersonOrAuction personOrAuction(String kind, JsonParser parser) throws IOException {
        if (kind.equals("Bid")) {
            return null;
        }
        PersonOrAuction event = new PersonOrAuction();
        event.isPerson = kind.equals("Person");
        String name;
        while ((name = parser.nextFieldName()) != null) {
            switch (name) {
                case "id" -> {
                    long id = parser.nextLongValue(0);
                    if (event.isPerson) {
                        event.person = id;
                    } else {
                        event.auction = id;
                    }
                }
                case "seller" -> event.person = parser.nextLongValue(0);
                case "category" -> event.category = parser.nextLongValue(0);
                case "date_time" -> event.dateTime = parser.nextLongValue(0);
                case "name" -> event.name = parser.nextTextValue();
                case "city" -> event.city = parser.nextTextValue();
                case "state" -> event.state = parser.nextTextValue();
                default -> skip(parser);
            }
        }
        return event;
    }

    /** Auctions without their names, and bids. */
    static AuctionOrBid auctionOrBid(String kind, JsonParser parser) throws IOException {
        return auctionOrBid(kind, parser, false);
    }

    /** Auctions with their names, and bids. */
    static AuctionOrBid namedAuctionOrBid(String kind, JsonParser parser) throws IOException {
        return auctionOrBid(kind, parser, true);
    }

    private static AuctionOrBid auctionOrBid(String kind, JsonParser parser, boolean named) throws IOException {
        if (kind.equals("Person")) {
            return null;
        }
        AuctionOrBid event = new AuctionOrBid();
        event.isBid = kind.equals("Bid");
        if (event.isBid) {
            bidFields(event.bid, parser);
            return event;
        }
        String name;
        while ((name = parser.nextFieldName()) != null) {
            switch (name) {
                case "id" -> event.bid.auction = parser.nextLongValue(0);
                case "date_time" -> event.bid.dateTime = parser.nextLongValue(0);
                case "expires" -> event.expires = parser.nextLongValue(0);
                case "seller" -> event.seller = parser.nextLongValue(0);
                case "category" -> event.category = parser.nextLongValue(0);
                case "item_name" -> {
                    if (named) {
                        event.itemName = parser.nextTextValue();
                    } else {
                        skip(parser);
                    }
                }
                default -> skip(parser);
            }
        }
        return event;
    }

    private static void bidFields(Bid bid, JsonParser parser) throws IOException {
        String name;
        while ((name = parser.nextFieldName()) != null) {
            switch (name) {
                case "auction" -> bid.auction = parser.nextLongValue(0);
                case "bidder" -> bid.bidder = parser.nextLongValue(0);
                case "price" -> bid.price = parser.nextLongValue(0);
                case "date_time" -> bid.dateTime = parser.nextLongValue(0);
                default -> skip(parser);
            }
        }
    }

    private static void skip(JsonParser parser) throws IOException {
        if (parser.nextToken().isStructStart()) {
            parser.skipChildren();
        }
    }

    /** Events of a file, a JSON object a line, parsed as bytes without a String per line. */
    static final class EventFormat<T> extends SimpleStreamFormat<T> {
        private static final JsonFactory JSON = new JsonFactory();
        private final Class<T> type;
        private final Decoder<T> decoder;

        EventFormat(Class<T> type, Decoder<T> decoder) {
            this.type = type;
            this.decoder = decoder;
        }

        @Override
        public Reader<T> createReader(Configuration configuration, FSDataInputStream stream) {
            Lines lines = new Lines(stream);
            return new StreamFormat.Reader<>() {
                @Override
                public T read() throws IOException {
                    while (lines.advance()) {
                        try (JsonParser parser = JSON.createParser(lines.buffer, lines.start, lines.length)) {
                            parser.nextToken();
                            String kind = parser.nextFieldName();
                            parser.nextToken();
                            T event = decoder.decode(kind, parser);
                            if (event != null) {
                                return event;
                            }
                        }
                    }
                    return null;
                }

                @Override
                public void close() throws IOException {
                    stream.close();
                }
            };
        }

        @Override
        public TypeInformation<T> getProducedType() {
            return TypeInformation.of(type);
        }
    }

    /** Lines of a file as bytes. */
    static final class LineFormat extends SimpleStreamFormat<byte[]> {
        @Override
        public Reader<byte[]> createReader(Configuration configuration, FSDataInputStream stream) {
            Lines lines = new Lines(stream);
            return new StreamFormat.Reader<>() {
                @Override
                public byte[] read() throws IOException {
                    if (!lines.advance()) {
                        return null;
                    }
                    return java.util.Arrays.copyOfRange(lines.buffer, lines.start, lines.start + lines.length);
                }

                @Override
                public void close() throws IOException {
                    stream.close();
                }
            };
        }

        @Override
        public TypeInformation<byte[]> getProducedType() {
            return TypeInformation.of(byte[].class);
        }
    }

    /** Lines of a stream as ranges of one buffer. */
    private static final class Lines {
        private final FSDataInputStream input;
        private byte[] buffer = new byte[1 << 16];
        private int end;
        private int next;
        int start;
        int length;

        Lines(FSDataInputStream input) {
            this.input = input;
        }

        boolean advance() throws IOException {
            int scanned = next;
            while (true) {
                for (; scanned < end; scanned++) {
                    if (buffer[scanned] == '\n') {
                        start = next;
                        length = scanned - next;
                        next = scanned + 1;
                        return true;
                    }
                }
                if (next > 0) {
                    System.arraycopy(buffer, next, buffer, 0, end - next);
                    end -= next;
                    scanned -= next;
                    next = 0;
                }
                if (end == buffer.length) {
                    buffer = java.util.Arrays.copyOf(buffer, 2 * buffer.length);
                }
                int read = input.read(buffer, end, buffer.length - end);
                if (read < 0) {
                    start = 0;
                    length = end;
                    next = end;
                    return length > 0;
                }
                end += read;
            }
        }
    }
}
