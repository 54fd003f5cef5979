// `page` and `play` as in program.cpp.
using System;
using System.Linq;
using ApexAcer;

static class Program {
    static void Print(double[][] actions) => Console.WriteLine(string.Concat(
        actions.Select(action => "[" + string.Concat(action.Select(number => number + ",")) + "]")));

    static void Page(string url, string token) {
        using (var client = new Client(url, token, new[] { new Observation(new[] { 2 }, "float32") }, new Actions { N = 3 }, 2)) {
            float[] first = { 0.5f, -1, 0, 0 };
            float[,] second = { { 0, 0.5f }, { 0.5f, -1 } };
            Print(client.Steps(new[] { Kind.Reset, Kind.Wait }, new[] { first }, new double[] { 0, 0 }));
            Print(client.Steps(new[] { Kind.Terminated, Kind.Reset }, new[] { second }, new[] { 1.5, 0 }));
        }
    }

    static void Play(string url, string token, int rounds) {
        var observations = new[] { new Observation(new[] { 4 }, "float32") };
        using (var client = new Client(url, token, observations, new Actions { N = 2 }, 3))
            for (int round = 0; round < rounds; ++round) try {
                var obs = new float[3, 4];
                for (int agent = 0; agent < 3; ++agent) { obs[agent, 0] = round + agent; obs[agent, 1] = agent; }
                Kind kind = round % 10 == 0 ? Kind.Reset : round % 10 < 9 ? Kind.Step : Kind.Truncated;
                Print(client.Steps(Enumerable.Repeat(kind, 3).ToArray(), new[] { obs }, new double[] { 1, 2, 3 }));
            } catch (EpisodeLost error) {
                Console.WriteLine("lost: " + error.Message);
                round -= round % 10 + 1;
            }
    }

    static void Main(string[] words) {
        string url = "ws://127.0.0.1:" + words[1];
        try {
            if (words[0] == "page") Page(url, words[2]);
            else Play(url, words[2], int.Parse(words[3]));
        } catch (Ended error) {
            Console.WriteLine("ended: " + error.Message);
        } catch (RemoteError error) {
            Console.WriteLine("refused: " + error.Message);
        }
    }
}
