// The clock of the GEMV lab.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "reference.cuh"

inline cudaStream_t stream;

// A graph of launches, and how long one of them took in each round of replays.
struct Timed {
    cudaGraphExec_t exec;
    int copies;
    std::vector<double> us;

    Timed(const std::function<void(int)>& one, int n) : copies(n) {
        cudaGraph_t graph;
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < copies; i++) one(i);
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphDestroy(graph));
    }
    // The median of a few replays.
    void round() {
        std::vector<float> times;
        cudaEvent_t begin, end;
        OK(cudaEventCreate(&begin));
        OK(cudaEventCreate(&end));
        for (int i = 0; i < 6; i++) {
            OK(cudaEventRecord(begin, stream));
            OK(cudaGraphLaunch(exec, stream));
            OK(cudaEventRecord(end, stream));
            OK(cudaEventSynchronize(end));
            float ms;
            OK(cudaEventElapsedTime(&ms, begin, end));
            if (i > 0) times.push_back(ms * 1000 / copies);
        }
        OK(cudaEventDestroy(begin));
        OK(cudaEventDestroy(end));
        std::sort(times.begin(), times.end());
        us.push_back(times[times.size() / 2]);
    }
    double median() {
        std::sort(us.begin(), us.end());
        return us[us.size() / 2];
    }
};
