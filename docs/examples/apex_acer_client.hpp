// A client of apex_acer in C++17 for Linux: one header, which needs only the standard library and sockets. It speaks
// version 2 of docs/remote.md's protocol in msgpack, without TLS, and reconnects by itself.
//
//   apex_acer::Client client({"127.0.0.1", "7777", token, {{"", {4}, "float32"}}, {2}, 16});
//   auto actions = client.steps(kinds, {observations.data()}, rewards);
#pragma once
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace apex_acer {
/// The server refused a message or cannot be reached; says why in one line.
struct RemoteError : std::runtime_error { using std::runtime_error::runtime_error; };
/// The connection was broken for too long, so the episodes of all agents are over; each begins a new one.
struct EpisodeLost : RemoteError { using RemoteError::RemoteError; };
/// The server has ended, for example because its run has.
struct Ended : RemoteError { using RemoteError::RemoteError; };

/// An observation, or one of its parts if it has a name: its shape, and NumPy's name of its type.
struct Array { std::string name; std::vector<int> shape; std::string dtype; };
/// The action space: `{n, start}`, or several choices `{0, 0, nvec}`, or floats `{0, 0, {}, low, high}`.
struct Actions { std::int64_t n = 0, start = 0; std::vector<int> nvec = {}; std::vector<double> low = {}, high = {}; };
/// What the server must know, and for how many seconds a client tries to connect.
struct Setup {
    std::string host, port, token;
    std::vector<Array> arrays; Actions actions;
    int agents = 1; bool train = true; double patience_s = 60;
};
/// What is new of an agent: the first four as in the protocol; `wait` if nothing is.
enum class Kind { reset, step, terminated, truncated, wait };

namespace detail {
inline const char* const NAMES[] = {"reset", "step", "terminated", "truncated", "wait"};  // of each `Kind`
struct Broken : std::runtime_error { using std::runtime_error::runtime_error; };  // another connection may work

/// Writes msgpack.
struct Writer {
    std::string data;
    Writer& add(const void* bytes, std::size_t size) { data.append(static_cast<const char*>(bytes), size); return *this; }
    Writer& big(std::uint64_t value, int bytes) { while (bytes--) data += char(value >> (8 * bytes)); return *this; }
    Writer& head(int small, std::size_t most, int wide, std::size_t size) {
        if (size <= most) return big(small | size, 1);
        return size < 65536 ? big(wide, 1).big(size, 2) : big(wide + 1, 1).big(size, 4);
    }
    Writer& map(std::size_t size) { return head(0x80, 15, 0xde, size); }
    Writer& text(const std::string& value) {
        const std::size_t size = value.size();
        return (size > 31 && size < 256 ? big(0xd9, 1).big(size, 1) : head(0xa0, 31, 0xda, size)).add(value.data(), size);
    }
    Writer& bin(const void* bytes, std::size_t size) {
        return (size < 256 ? big(0xc4, 1).big(size, 1) : head(0, 0, 0xc5, size)).add(bytes, size);
    }
    Writer& number(std::int64_t value) { return value >= 0 && value < 128 ? big(value, 1) : big(0xd3, 1).big(value, 8); }
    Writer& number(int value) { return number(std::int64_t(value)); }
    Writer& number(double value) { std::uint64_t bits; std::memcpy(&bits, &value, 8); return big(0xcb, 1).big(bits, 8); }
    template <class Number> Writer& list(const std::vector<Number>& values) {
        head(0x90, 15, 0xdc, values.size());
        for (Number value : values) number(value);
        return *this;
    }
    Writer& number(Kind kind) { return text(NAMES[int(kind)]); }
};

/// A value of a message: nil, a number or bool, a text, the items of a list, or the fields of a map.
struct Value {
    bool is_nil = false; double number = 0; std::string text = {};
    std::vector<Value> items = {}; std::map<std::string, Value> fields = {};
};

/// Reads msgpack as the server writes it; throws `Broken` if it is cut off or has a type that the protocol has not.
struct Reader {
    const std::string& data;
    std::size_t at = 0;
    std::string take(std::size_t size) {
        if (size > data.size() - at) throw Broken("a message is cut off");
        at += size;
        return data.substr(at - size, size);
    }
    std::uint64_t big(int bytes) {
        std::uint64_t value = 0;
        for (char byte : take(bytes)) value = value << 8 | std::uint8_t(byte);
        return value;
    }
    Value all(std::size_t size, bool named) {
        Value value;
        while (size--) if (named) { const std::string key = read().text; value.fields[key] = read(); }
            else value.items.push_back(read());
        return value;
    }
    Value read() {
        const int tag = int(big(1)), bytes = 1 << (tag & 3), unused = 64 - 8 * bytes;
        if (tag < 0x80 || tag >= 0xe0) return {false, double(std::int8_t(tag))};
        if (tag < 0xa0) return all(tag & 15, tag < 0x90);
        if (tag < 0xc0) return {false, 0, take(tag & 31)};
        if (tag == 0xc0) return {true};
        if (tag == 0xc2 || tag == 0xc3) return {false, double(tag & 1)};
        if (tag >= 0xcc && tag <= 0xcf) return {false, double(big(bytes))};
        if (tag >= 0xd0 && tag <= 0xd3) return {false, double(std::int64_t(big(bytes) << unused) >> unused)};
        if (tag >= 0xd9 && tag <= 0xdb) return {false, 0, take(big(1 << (tag - 0xd9)))};
        if (tag >= 0xdc && tag <= 0xdf) return all(big(tag & 1 ? 4 : 2), tag >= 0xde);
        if (tag != 0xcb) throw Broken("a message has a value of an unknown type");
        const std::uint64_t bits = big(8);
        double number;
        std::memcpy(&number, &bits, 8);
        return {false, number};
    }
};

/// A WebSocket (RFC 6455), which answers pings while it waits. A server that says nothing for 30 s, no ping either, is gone.
class Socket {
 public:
    Socket(const std::string& host, const std::string& port) {
        addrinfo hints{}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found)) throw Broken("no such address");
        const timeval wait{30, 0}; const int yes = 1;
        for (addrinfo* each = found; each && fd_ < 0; each = each->ai_next) {
            fd_ = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
            setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
            setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
            setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            if (connect(fd_, each->ai_addr, each->ai_addrlen)) close(std::exchange(fd_, -1));
        }
        freeaddrinfo(found);
        if (fd_ < 0) throw Broken("cannot connect");
    }
    ~Socket() { close(fd_); }
    Socket(const Socket&) = delete;
    void upgrade(const std::string& host) {
        // the nonce of RFC 6455's example, whose answer is known without SHA-1
        write("GET / HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n");
        std::string answer;
        while (answer.size() < 4096 && answer.find("\r\n\r\n") == std::string::npos) answer += read(1);
        if (answer.find("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") == std::string::npos) throw Broken("no WebSocket is there");
    }
    void send(const std::string& payload, int opcode = 2) {
        const std::size_t size = payload.size();
        const std::uint32_t mask = std::uint32_t(random_());
        Writer frame;
        frame.big(0x80 | opcode, 1);
        if (size < 126) frame.big(0x80 | size, 1);
        else size < 65536 ? frame.big(0xfe, 1).big(size, 2) : frame.big(0xff, 1).big(size, 8);
        frame.big(mask, 4);
        for (std::size_t at = 0; at < size; ++at) frame.data += char(payload[at] ^ (mask >> (24 - 8 * (at % 4))));
        write(frame.data);
    }
    std::string receive() {
        for (std::string message;;) {
            const std::string head = read(2);
            const int opcode = head[0] & 15, length = head[1] & 127;
            const std::string longer = read(length == 126 ? 2 : length == 127 ? 8 : 0);
            const std::string payload = read(longer.empty() ? length : Reader{longer}.big(int(longer.size())));
            if (opcode == 8) send(payload, 8), throw Broken("the server closed the connection");
            if (opcode == 9) send(payload, 10);
            if (opcode < 8) message += payload;
            if (opcode < 8 && head[0] & 0x80) return message;
        }
    }

 private:
    void write(const std::string& bytes) {
        const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent != ssize_t(bytes.size())) throw Broken("the connection broke");
    }
    std::string read(std::size_t size) {
        std::string bytes(size, 0);
        if (size && recv(fd_, &bytes[0], size, MSG_WAITALL) != ssize_t(size)) throw Broken("the connection broke");
        return bytes;
    }
    int fd_ = -1;
    std::mt19937 random_{std::random_device{}()};
};

}  // namespace detail
/// Some agents on one connection, for one thread. Observations are little-endian, as this machine must be.
class Client {
 public:
    /// Connects; throws `RemoteError` if the server refuses, or cannot be reached for `patience_s` seconds.
    explicit Client(Setup setup) : setup_(std::move(setup)) { join(); }
    /// Leaves; episodes that have not ended count as truncated.
    ~Client() {
        detail::Writer bye;
        bye.map(2).text("type").text("bye").text("sequence").number(sequence_ + 1);
        try { if (socket_) socket_->send(bye.data); } catch (const detail::Broken&) {}
    }
    /// Sends what is new of each agent: of each array, a pointer to `[agents, *shape]` numbers of its type, and the rewards.
    /// Returns each agent's next action: empty if it asked for none, or else a number, or choices or floats in C order.
    std::vector<std::vector<double>> steps(const std::vector<Kind>& kinds, const std::vector<const void*>& observations,
                                           const std::vector<double>& rewards) {
        if (kinds.size() != std::size_t(setup_.agents) || observations.size() != setup_.arrays.size())
            throw std::invalid_argument("require a kind of each agent, and a pointer to each array's observations");
        for (++sequence_, pause_s_ = FIRST_PAUSE_S;;) try {
            if (!socket_) come_back(std::count(kinds.begin(), kinds.end(), Kind::reset) == setup_.agents);
            if (server_has_ < sequence_) socket_->send(message(kinds, observations, rewards));
            server_has_ = sequence_;
            for (;;) if (detail::Value answer = hear(); answer.fields["sequence"].number == sequence_) {
                std::vector<std::vector<double>> actions;
                for (const detail::Value& each : answer.fields["actions"].items) {
                    actions.emplace_back(each.is_nil || !each.items.empty() ? 0 : 1, each.number);
                    for (const detail::Value& part : each.items) actions.back().push_back(part.number);
                }
                return actions;
            }
        } catch (const detail::Broken&) {
            try { while (socket_) hear(); } catch (const detail::Broken&) {}  // the server's bye may have come before
            socket_.reset(), pause();
        }
    }
 private:
    std::string hello() const {
        const Actions& actions = setup_.actions;
        detail::Writer out;
        out.map(6 + !setup_.train + !session_.empty()).text("type").text("hello").text("version").number(2);
        out.text("token").text(setup_.token).text("observation");
        if (!setup_.arrays[0].name.empty()) out.map(setup_.arrays.size());
        for (const Array& array : setup_.arrays) {
            if (!array.name.empty()) out.text(array.name);
            out.map(2).text("shape").list(array.shape).text("dtype").text(array.dtype);
        }
        out.text("action");
        if (!actions.low.empty()) out.map(2).text("low").list(actions.low).text("high").list(actions.high);
        else if (!actions.nvec.empty()) out.map(1).text("nvec").list(actions.nvec);
        else out.map(actions.start ? 2 : 1).text("n").number(actions.n);
        if (actions.start) out.text("start").number(actions.start);
        out.text("agents").number(setup_.agents);
        if (!setup_.train) out.text("train").big(0xc2, 1);
        if (!session_.empty()) out.text("session").text(session_);
        return out.data;
    }
    std::string message(const std::vector<Kind>& kinds, const std::vector<const void*>& observations,
                        const std::vector<double>& rewards) const {
        detail::Writer out;
        out.map(5).text("type").text("steps").text("sequence").number(sequence_).text("kinds").list(kinds);
        out.text("observations");
        if (!setup_.arrays[0].name.empty()) out.map(setup_.arrays.size());
        for (std::size_t at = 0; at < setup_.arrays.size(); ++at) {
            const std::string& dtype = setup_.arrays[at].dtype;
            const std::size_t digit = dtype.find_first_of("0123456789");
            std::size_t size = kinds.size() * (digit == std::string::npos ? 1 : std::stoul(dtype.substr(digit)) / 8);
            for (int length : setup_.arrays[at].shape) size *= length;
            if (!setup_.arrays[at].name.empty()) out.text(setup_.arrays[at].name);
            out.bin(observations[at], size);
        }
        return out.text("rewards").list(rewards).data;
    }
    detail::Value hear() {
        const std::string data = socket_->receive();
        detail::Value message = detail::Reader{data}.read();
        const std::string type = message.fields["type"].text, line = message.fields["message"].text;
        if (type == "bye") throw Ended(line);
        if (type == "error" && message.fields["retry"].number) throw detail::Broken(line);
        if (type == "error") throw RemoteError(line);
        return message;
    }
    void come_back(bool begins) {
        if (const std::string before = session_; join(), session_ == before) return;
        sequence_ = begins ? 0 : -1;
        if (!begins) throw EpisodeLost("the connection was broken for too long; begin new episodes");
    }
    void join() {
        const auto ends_at = std::chrono::steady_clock::now() + std::chrono::duration<double>(setup_.patience_s);
        for (;;) try {
            socket_.emplace(setup_.host, setup_.port);
            socket_->upgrade(setup_.host);
            socket_->send(hello());
            detail::Value welcome = hear();
            session_ = welcome.fields["session"].text;
            server_has_ = std::int64_t(welcome.fields["sequence"].number);
            return;
        } catch (const detail::Broken& error) {
            if (socket_.reset(); std::chrono::steady_clock::now() + std::chrono::duration<double>(pause_s_) > ends_at)
                throw RemoteError(setup_.host + ":" + setup_.port + ": " + error.what());
            pause();
        }
    }
    void pause() {  // longer each time until a message is answered; clients that were cut off together come back apart
        std::this_thread::sleep_for(std::chrono::duration<double>(pause_s_ * (0.5 + std::random_device{}() % 1000 / 2000.0)));
        pause_s_ = std::min(2 * pause_s_, 2.0);
    }
    static constexpr double FIRST_PAUSE_S = 0.1; double pause_s_ = FIRST_PAUSE_S;
    Setup setup_; std::string session_;
    std::int64_t sequence_ = -1, server_has_ = -1;
    std::optional<detail::Socket> socket_;
};

}  // namespace apex_acer
