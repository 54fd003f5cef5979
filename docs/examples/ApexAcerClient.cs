// A client of apex_acer in C# 7 for .NET Standard 2.0, such as Unity 2020 and later: one file without packages. It speaks
// version 2 of docs/remote.md's protocol in msgpack, and reconnects by itself.
//
//   var client = new ApexAcer.Client("ws://127.0.0.1:7777", token,
//       new[] { new ApexAcer.Observation(new[] { 4 }, "float32") }, new ApexAcer.Actions { N = 2 }, agents: 16);
//   double[][] actions = client.Steps(kinds, new[] { observations }, rewards);
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net.WebSockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace ApexAcer {
    /// <summary>The server refused a message or cannot be reached; says why in one line.</summary>
    public class RemoteError : Exception { public RemoteError(string line) : base(line) { } }
    /// <summary>The connection was broken for too long, so the episodes of all agents are over; each begins a new one.</summary>
    public class EpisodeLost : RemoteError { public EpisodeLost(string line) : base(line) { } }
    /// <summary>The server has ended, for example because its run has.</summary>
    public class Ended : RemoteError { public Ended(string line) : base(line) { } }

    /// <summary>What is new of an agent: the first four as in the protocol; Wait if nothing is.</summary>
    public enum Kind { Reset, Step, Terminated, Truncated, Wait }
    /// <summary>The action space: N choices from Start, or several choices (Nvec), or floats from Low to High.</summary>
    public sealed class Actions { public long N, Start; public int[] Nvec; public double[] Low, High; }

    /// <summary>An observation, or one of its parts if it has a name: its shape, and NumPy's name of its type.</summary>
    public sealed class Observation {
        internal readonly int[] Shape;
        internal readonly string Dtype, Name;
        public Observation(int[] shape, string dtype, string name = "") { Shape = shape; Dtype = dtype; Name = name; }
        /// <summary>The bytes of `[agents, *shape]` numbers; an array of another type or size is an error.</summary>
        internal byte[] Bytes(Array numbers, int agents) {
            int length = Shape.Aggregate(agents, (product, each) => product * each);
            Type type = numbers.GetType().GetElementType();
            string dtype = type == typeof(float) ? "float32" : type == typeof(double) ? "float64" : type == typeof(byte) ? "uint8"
                : type == typeof(sbyte) ? "int8" : type == typeof(bool) ? "bool" : type.Name.ToLowerInvariant();
            if (dtype != Dtype || numbers.Length != length)
                throw new ArgumentException($"{numbers.Length} numbers of type {dtype}; require {length} of type {Dtype}");
            var bytes = new byte[Buffer.ByteLength(numbers)];
            Buffer.BlockCopy(numbers, 0, bytes, 0, bytes.Length);
            return bytes;
        }
    }

    /// <summary>
    /// Some agents on one connection, for one thread at a time. Observations are little-endian, as this machine must be.
    /// In Unity, call Steps once in each FixedUpdate: the game waits for each answer, about a millisecond, but longer while
    /// the run saves or the connection is broken. A game that must not wait calls it from a thread of its own, with queues
    /// between. Pings are answered also while it is paused. Call Dispose in OnDestroy. Web builds have no such sockets.
    /// </summary>
    public sealed class Client : IDisposable {
        const double OpeningS = 10, AnswerS = 60, ClosingS = 5, FirstPauseS = 0.1, LongestPauseS = 2;
        readonly Uri _url;
        readonly Observation[] _observations;
        readonly int _agents;
        readonly double _patienceS;
        readonly Action<string> _warn;
        readonly Func<string, byte[]> _hello;  // of a session
        readonly Random _random = new Random(Guid.NewGuid().GetHashCode());  // many clients may start within one tick
        string _session = ""; double _pauseS = FirstPauseS;
        long _sequence = -1, _serverHas = -1;
        Connection _connection;

        /// <summary>Connects; throws RemoteError if the server refuses, or cannot be reached for patienceS seconds.</summary>
        /// <param name="url">Such as ws://127.0.0.1:7777.</param>
        /// <param name="name">At most 40 characters, under which the run logs what the client has done; empty: nothing.</param>
        /// <param name="train">Whether to be learned from.</param>
        /// <param name="warn">Gets a line while the server cannot be reached, as Debug.LogWarning; null: the console.</param>
        public Client(string url, string token, Observation[] observations, Actions actions, int agents = 1, string name = "",
                      bool train = true, double patienceS = 60, Action<string> warn = null) {
            if (!Uri.TryCreate(url, UriKind.Absolute, out _url) || _url.Scheme != "ws" && _url.Scheme != "wss")
                throw new RemoteError($"{url}: require an address such as ws://127.0.0.1:7777");
            _observations = observations; _agents = agents; _patienceS = patienceS; _warn = warn ?? Console.Error.WriteLine;
            _hello = session => Hello(token, actions, name, train, session);
            Join();
        }

        /// <summary>Sends what is new of each agent, and waits for the actions, also through connections that break.</summary>
        /// <param name="kinds">Of each agent.</param>
        /// <param name="numbers">For each observation `[agents, *shape]` numbers, in an array of its type and any rank.</param>
        /// <param name="rewards">Of each agent; those of agents that wait or reset are ignored.</param>
        /// <returns>Each agent's action: empty if it asked for none, else a number, or choices or floats in C order.</returns>
        public double[][] Steps(Kind[] kinds, Array[] numbers, double[] rewards) {
            if (kinds.Length != _agents || rewards.Length != _agents || numbers.Length != _observations.Length)
                throw new ArgumentException($"require {_agents} kinds and rewards, and {_observations.Length} arrays");
            byte[][] bytes = _observations.Zip(numbers, (each, its) => each.Bytes(its, _agents)).ToArray();
            for (++_sequence, _pauseS = FirstPauseS;;) try {
                if (_connection == null) ComeBack(kinds.All(kind => kind == Kind.Reset));
                if (_serverHas < _sequence) _connection.Send(Message(kinds, bytes, rewards));
                _serverHas = _sequence;
                Dictionary<string, object> answer;
                do answer = Hear(AnswerS); while (Get<double>(answer, "sequence") != _sequence);  // from before it broke
                return Get<List<object>>(answer, "actions").Select(Numbers).ToArray();
            } catch (Broken error) {
                Leave(); Pause(error);
            }
        }

        /// <summary>Leaves; episodes that have not ended count as truncated.</summary>
        public void Dispose() {
            if (_connection == null) return;
            try {
                _connection.Send(new Writer().Map(2).Text("type").Text("bye").Text("sequence").Number(_sequence + 1).ToArray());
                for (;;) Hear(ClosingS);  // until the server closes
            } catch (Exception error) when (error is Broken || error is RemoteError) { }
            Drop();
        }

        byte[] Hello(string token, Actions actions, string name, bool train, string session) {
            var keys = new Writer().Map(6 + (train ? 0 : 1) + (name == "" ? 0 : 1) + (session == "" ? 0 : 1));
            keys.Text("type").Text("hello").Text("version").Number(2).Text("token").Text(token).Text("observation");
            if (_observations[0].Name != "") keys.Map(_observations.Length);
            foreach (Observation each in _observations) {
                if (each.Name != "") keys.Text(each.Name);
                keys.Map(2).Text("shape").List(each.Shape, length => keys.Number(length)).Text("dtype").Text(each.Dtype);
            }
            keys.Text("action").Map(actions.Low != null || actions.Start != 0 ? 2 : 1);
            if (actions.Low != null) keys.Text("low").List(actions.Low, keys.Double).Text("high").List(actions.High, keys.Double);
            else if (actions.Nvec != null) keys.Text("nvec").List(actions.Nvec, n => keys.Number(n));
            else keys.Text("n").Number(actions.N);
            if (actions.Start != 0) keys.Text("start").Number(actions.Start);
            keys.Text("agents").Number(_agents);
            if (!train) keys.Text("train").Byte(0xc2);
            if (name != "") keys.Text("name").Text(name);
            if (session != "") keys.Text("session").Text(session);
            return keys.ToArray();
        }

        byte[] Message(Kind[] kinds, byte[][] bytes, double[] rewards) {
            var keys = new Writer().Map(5).Text("type").Text("steps").Text("sequence").Number(_sequence);
            keys.Text("kinds").List(kinds, kind => keys.Text(kind.ToString().ToLowerInvariant())).Text("observations");
            if (_observations[0].Name != "") keys.Map(_observations.Length);
            for (int at = 0; at < bytes.Length; ++at) {
                if (_observations[at].Name != "") keys.Text(_observations[at].Name);
                keys.Bin(bytes[at]);
            }
            return keys.Text("rewards").List(rewards, keys.Double).ToArray();
        }

        Dictionary<string, object> Hear(double withinS) {
            var message = new Reader(_connection.Receive(withinS)).Read() as Dictionary<string, object>;
            string type = Get<string>(message, "type");
            if (type != "bye" && type != "error") return message;
            string line = Get<string>(message, "message");
            throw type == "bye" ? new Ended(line) : Get<bool>(message, "retry") ? new Broken(line) : (Exception)new RemoteError(line);
        }

        void ComeBack(bool begins) {
            string before = _session;
            Join();
            if (_session == before) return;
            _sequence = begins ? 0 : -1;
            if (!begins) throw new EpisodeLost("the connection was broken for too long; begin new episodes");
        }

        void Join() {
            for (Stopwatch clock = Stopwatch.StartNew(); ; ) try {
                _connection = new Connection(_url, OpeningS);
                _connection.Send(_hello(_session));
                Dictionary<string, object> welcome = Hear(OpeningS);
                _session = Get<string>(welcome, "session");
                _serverHas = (long)Get<double>(welcome, "sequence");
                return;
            } catch (Broken error) {
                Drop();
                if (clock.Elapsed.TotalSeconds + _pauseS > _patienceS) throw new RemoteError($"{_url}: {error.Message}");
                Pause(error);
            }
        }

        void Pause(Broken error) {  // longer each time until a message is answered; the first may just have come too early
            if (_pauseS == 2 * FirstPauseS) _warn($"{_url}: {error.Message}; trying again for {_patienceS} s");
            Thread.Sleep((int)(1000 * _pauseS * (0.5 + _random.NextDouble() / 2)));  // clients cut off together come apart
            _pauseS = Math.Min(2 * _pauseS, LongestPauseS);
        }

        void Leave() {  // the server's bye may have come before
            try { while (_connection != null) Hear(ClosingS); } catch (Broken) { } finally { Drop(); }
        }

        void Drop() { _connection?.Dispose(); _connection = null; }
        static double[] Numbers(object action) => action == null ? new double[0]
            : action is List<object> parts ? parts.Select(Convert.ToDouble).ToArray() : new[] { Convert.ToDouble(action) };
        static T Get<T>(Dictionary<string, object> message, string key) {
            if (message != null && message.TryGetValue(key, out object value) && value is T) return (T)value;
            throw new RemoteError($"the server's message has no {key} of type {typeof(T).Name}");
        }
    }

    sealed class Broken : Exception { internal Broken(string line) : base(line) { } }  // another connection may work

    /// <summary>A WebSocket that always reads its next message, and so answers pings, whatever the program does.</summary>
    sealed class Connection : IDisposable {
        readonly ClientWebSocket _socket = new ClientWebSocket();
        Task<byte[]> _next;
        internal Connection(Uri url, double withinS) {
            Await(Task.Run(() => _socket.ConnectAsync(url, CancellationToken.None)), withinS);
            _next = ReadAsync();
        }

        internal void Send(byte[] message) => Await(
            _socket.SendAsync(new ArraySegment<byte>(message), WebSocketMessageType.Binary, true, CancellationToken.None), 30);
        internal byte[] Receive(double withinS) {
            Await(_next, withinS);
            byte[] message = _next.Result;
            _next = ReadAsync();
            return message;
        }
        public void Dispose() => _socket.Dispose();
        async Task<byte[]> ReadAsync() {
            var message = new MemoryStream();
            var buffer = new ArraySegment<byte>(new byte[4096]);
            for (;;) {
                var part = await _socket.ReceiveAsync(buffer, CancellationToken.None).ConfigureAwait(false);
                if (part.MessageType == WebSocketMessageType.Close) throw new Broken("the server closed the connection");
                message.Write(buffer.Array, 0, part.Count);
                if (part.EndOfMessage) return message.ToArray();
            }
        }
        void Await(Task task, double withinS) {
            try { if (task.Wait(TimeSpan.FromSeconds(withinS))) return; }
            catch (AggregateException error) { throw new Broken(error.GetBaseException().Message); }
            _socket.Abort();
            throw new Broken($"nothing came for {withinS} s");
        }
    }

    /// <summary>Writes msgpack.</summary>
    sealed class Writer {
        readonly MemoryStream _data = new MemoryStream();
        internal byte[] ToArray() => _data.ToArray();
        internal Writer Byte(long value) => Big(value, 1);
        internal Writer Map(int size) => Head(0x80, 15, 0xde, size);
        internal Writer Number(long value) => value >= 0 && value < 128 ? Byte(value) : Byte(0xd3).Big(value, 8);
        internal Writer Double(double value) => Byte(0xcb).Big(BitConverter.DoubleToInt64Bits(value), 8);
        internal Writer Bin(byte[] bytes) => Sized(bytes, 0, -1, 0xc4);
        internal Writer Text(string value) => Sized(Encoding.UTF8.GetBytes(value), 0xa0, 31, 0xd9);
        internal Writer List<T>(T[] values, Func<T, Writer> write) {
            Head(0x90, 15, 0xdc, values.Length);
            foreach (T value in values) write(value);
            return this;
        }
        Writer Sized(byte[] bytes, int small, int most, int wide) {
            if (bytes.Length > most && bytes.Length < 256) Byte(wide).Byte(bytes.Length);
            else Head(small, most, wide + 1, bytes.Length);
            _data.Write(bytes, 0, bytes.Length);
            return this;
        }
        Writer Head(int small, int most, int wide, int size) => size <= most ? Byte(small | size)
            : size < 65536 ? Byte(wide).Big(size, 2) : Byte(wide + 1).Big(size, 4);
        Writer Big(long value, int bytes) {
            while (bytes-- > 0) _data.WriteByte((byte)(value >> (8 * bytes)));
            return this;
        }
    }

    /// <summary>Reads msgpack as the server writes it: null, bools, doubles, texts, lists and maps.</summary>
    sealed class Reader {
        readonly byte[] _data;
        int _at;
        internal Reader(byte[] data) { _data = data; }
        internal object Read() {
            int tag = (int)Big(1), bytes = 1 << (tag & 3), unused = 64 - 8 * bytes;
            if (tag < 0x80 || tag >= 0xe0) return (double)(sbyte)tag;
            if (tag < 0xa0) return All(tag & 15, tag < 0x90);
            if (tag < 0xc0) return Text(tag & 31);
            if (tag == 0xc0) return null;
            if (tag == 0xc2 || tag == 0xc3) return tag == 0xc3;
            if (tag == 0xcb) return BitConverter.Int64BitsToDouble(Big(8));
            if (tag >= 0xcc && tag <= 0xcf) return (double)(ulong)Big(bytes);
            if (tag >= 0xd0 && tag <= 0xd3) return (double)(Big(bytes) << unused >> unused);
            if (tag >= 0xd9 && tag <= 0xdb) return Text(Big(1 << (tag - 0xd9)));
            if (tag >= 0xdc && tag <= 0xdf) return All(Big((tag & 1) == 1 ? 4 : 2), tag >= 0xde);
            throw new RemoteError("the server's message has a value of an unknown type");
        }
        object All(long size, bool named) {
            var items = new List<object>();
            var fields = new Dictionary<string, object>();
            while (size-- > 0)
                if (named) { string key = Read() as string ?? ""; fields[key] = Read(); }
                else items.Add(Read());
            return named ? (object)fields : items;
        }
        string Text(long size) => Encoding.UTF8.GetString(_data, Take(size), (int)size);
        long Big(int bytes) {
            long value = 0;
            for (int from = Take(bytes), end = from + bytes; from < end; ++from) value = value << 8 | _data[from];
            return value;
        }
        int Take(long size) {
            if (size > _data.Length - _at) throw new RemoteError("the server's message is cut off");
            _at += (int)size;
            return _at - (int)size;
        }
    }
}
