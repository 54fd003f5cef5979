FROM python:3.11-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 acer && install --directory --owner acer /work/runs

WORKDIR /source
COPY constraints.txt ./
# of https://download.pytorch.org/whl: cpu, or cu128 and its like for NVIDIA GPUs
ARG TORCH=cpu
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --no-deps --constraint constraints.txt \
    --index-url "https://download.pytorch.org/whl/${TORCH}" torch
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY apex_acer apex_acer
COPY launch launch
RUN pip install --no-cache-dir --constraint constraints.txt '.[box2d,dashboard,mujoco,sweep]'

USER 1000
WORKDIR /work
# tini hands signals on and reaps what a run leaves behind
ENTRYPOINT ["tini", "--", "apex-acer"]
CMD ["--help"]
