# Serves an index that is mounted at /index:
#
#   docker build -t papers .
#   docker run --read-only --tmpfs /tmp -v "$PWD/index:/index:ro" -p 127.0.0.1:8000:8000 papers
#
# Clients may ask for localhost; for another name add it at the end: ... papers --allow-host papers.example.org
# An index that was made by a model in a folder needs that folder too: -v "$PWD/model:/model:ro" ... --model /model
FROM python:3.11-slim

# compiled loops are cached where the user may write
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 NUMBA_CACHE_DIR=/tmp/numba HF_HUB_OFFLINE=1

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# the wheels of torch without CUDA are a tenth of the size
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu '.[explore]' \
    && rm -rf /app/src \
    && useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin citeweave

USER 10001
WORKDIR /
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import json, urllib.request as u; assert json.load(u.urlopen('http://127.0.0.1:8000/health', timeout=4))['status'] != 'failing'"]
ENTRYPOINT ["citeweave", "serve", "/index", "--host", "0.0.0.0", "--log", "json"]
