// The same in C++17: a model that closes itself, failures as exceptions, and tokens picked from the
// logits by the program.
//
//   model MODEL SWAP COUNT < TOKENS      numbers; prints the tokens that follow

#include "mzcache.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

template <typename T> T table()
{
    T table{};
    table.struct_bytes = sizeof table;
    return table;
}

void must(const std::string &what, int result, const mz_error *error = nullptr)
{
    if (result >= 0)
        return;
    std::string text = what + ": " + mz_strerror(result);
    if (error != nullptr)
        text += std::string(" (") + error->what + ", " + std::to_string(error->value) + ")";
    throw std::runtime_error(text);
}

class Model {
  public:
    Model(const char *path, const char *swap, std::uint32_t threads)
    {
        auto config = table<mz_model_config>();
        config.model_path = path;
        config.swap_path = swap;
        config.compute_threads = threads;
        auto error = table<mz_error>();
        std::size_t bytes = 0;
        must("size", mz_model_required_bytes(&config, &bytes, &error), &error);
        memory_ = std::make_unique<unsigned char[]>(bytes);
        must("open", mz_model_open(&config, memory_.get(), bytes, &model_, &error), &error);
    }

    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // Nobody else knows the model, so nothing can be running in it.
    ~Model() { mz_model_close(model_); }

    mz_handle *manager() const
    {
        mz_handle *handle = nullptr;
        must("handle", mz_model_handle(model_, &handle));
        return handle;
    }

    // Appends tokens and generates, each token chosen by `choose(logits, vocabulary)`.
    template <typename Choose>
    std::size_t generate(const std::vector<std::uint32_t> &tokens, std::size_t most, Choose choose)
    {
        Call<Choose> call{choose, nullptr};
        std::size_t generated = 0;
        int result = mz_restore_sample(model_, tokens.data(), tokens.size(), most,
                                       &Call<Choose>::run, &call, &generated);
        if (call.failure)
            std::rethrow_exception(call.failure);
        must("generate", result);
        return generated;
    }

  private:
    // No exception may cross the library.
    template <typename Choose> struct Call {
        Choose &choose;
        std::exception_ptr failure;

        static std::int64_t run(void *context, const float *logits, std::uint32_t vocabulary)
        {
            auto *call = static_cast<Call *>(context);
            try {
                return call->choose(logits, vocabulary);
            } catch (...) {
                call->failure = std::current_exception();
                return -1;
            }
        }
    };

    std::unique_ptr<unsigned char[]> memory_;
    mz_model *model_ = nullptr;
};

void run(const char *path, const char *swap, std::size_t most)
{
    std::vector<std::uint32_t> prompt{std::istream_iterator<std::uint32_t>(std::cin), {}};
    Model model(path, swap, 1);
    auto stats = table<mz_stats>();
    model.generate(prompt, 0, [](const float *, std::uint32_t) { return std::int64_t{-1}; });
    must("stats", mz_stats_get(model.manager(), &stats));
    auto report = table<mz_report>();
    must("evict", mz_evict(model.manager(), stats.weight_bytes / 2, 0, &report));
    must("truncate", mz_truncate(model.manager(), 0));
    model.generate(prompt, most, [](const float *logits, std::uint32_t vocabulary) {
        auto best = std::max_element(logits, logits + vocabulary) - logits;
        std::cout << best << ' ';
        return static_cast<std::int64_t>(best);
    });
    try {
        model.generate(prompt, 1, [](const float *, std::uint32_t) -> std::int64_t {
            throw std::runtime_error("chosen");
        });
    } catch (const std::runtime_error &error) {
        std::cout << error.what() << '\n';
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::cerr << "usage: model MODEL SWAP COUNT\n";
        return 2;
    }
    try {
        run(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10));
    } catch (const std::exception &error) {
        std::cout << error.what() << '\n';
        return 1;
    }
    return 0;
}
