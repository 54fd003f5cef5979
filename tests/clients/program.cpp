// `page` says what the page does; `play` has an observation [number, agent, 0, 0] of each of three agents, and prints actions
#include <iostream>
#include "apex_acer_client.hpp"
using namespace apex_acer;

void print(const std::vector<std::vector<double>>& actions) {
    for (const auto& action : actions) {
        std::cout << "[";
        for (double number : action) std::cout << number << ",";
        std::cout << "]";
    }
    std::cout << std::endl;
}

void page(const std::string& port, const std::string& token) {
    Client client({"127.0.0.1", port, token, {{"", {2}, "float32"}}, {3}, 2});
    const float first[] = {0.5, -1, 0, 0}, second[] = {0, 0.5, 0.5, -1};
    print(client.steps({Kind::reset, Kind::wait}, {first}, {0, 0}));
    print(client.steps({Kind::terminated, Kind::reset}, {second}, {1.5, 0}));
}

void play(const std::string& port, const std::string& token, int rounds) {
    Client client({"127.0.0.1", port, token, {{"", {4}, "float32"}}, {2}, 3});
    for (int round = 0; round < rounds; ++round) try {
        float obs[3][4] = {};
        for (int agent = 0; agent < 3; ++agent) obs[agent][0] = float(round + agent), obs[agent][1] = float(agent);
        const Kind kind = round % 10 == 0 ? Kind::reset : round % 10 < 9 ? Kind::step : Kind::truncated;
        print(client.steps({kind, kind, kind}, {obs}, {1, 2, 3}));
    } catch (const EpisodeLost& error) {
        std::cout << "lost: " << error.what() << std::endl;
        round -= round % 10 + 1;
    }
}

int main(int, char** words) {
    try {
        std::string(words[1]) == "page" ? page(words[2], words[3]) : play(words[2], words[3], std::stoi(words[4]));
    } catch (const Ended& error) {
        std::cout << "ended: " << error.what() << std::endl;
    } catch (const RemoteError& error) {
        std::cout << "refused: " << error.what() << std::endl;
    }
}
